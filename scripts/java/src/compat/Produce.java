package compat;

import java.io.BufferedWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Sends messages of many shapes (sizes, tags, keys, properties, compressed, batches) and notes each acknowledged one. */
final class Produce {
    static final String[] TOPICS = {"compat-a", "compat-b", "compat-c"};
    static final int[] QUEUES = {4, 8, 3};
    /** Aa and BB have the same Java hash. */
    static final String[] TAGS = {"TagA", "TagB", null, "Aa", "BB", "Ünïcode"};
    private static final int BATCH = 10;

    private final DefaultMQProducer producer = new DefaultMQProducer("compat-producer");
    private final String broker;
    private final BufferedWriter notes;

    private Produce(String namesrv, String broker, Path sent) throws Exception {
        this.broker = broker;
        notes = Files.newBufferedWriter(sent, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10_000);
        producer.start();
    }

    static void run(String namesrv, String broker, Path sent, int first, int count) throws Exception {
        createTopics(namesrv);
        Produce p = new Produce(namesrv, broker, sent);
        try {
            for (int n = first; n < first + count;) {
                n += n % 40 == 0 && n + BATCH <= first + count ? p.sendBatch(n) : p.sendOne(n);
            }
        } finally {
            p.notes.close();
            p.producer.shutdown();
        }
        System.out.println(count + " messages sent");
    }

    private static void createTopics(String namesrv) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("compat-admin-" + System.nanoTime());
        admin.start();
        try {
            for (var data : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
                for (int i = 0; i < TOPICS.length; i++) {
                    admin.createAndUpdateTopicConfig(data.selectBrokerAddr(), new TopicConfig(TOPICS[i], QUEUES[i], QUEUES[i]));
                }
            }
        } finally {
            admin.shutdown();
        }
    }

    private int sendOne(int n) throws Exception {
        Message m = message(n, n);
        // The client replaces the body of the message by its compressed form while it sends.
        byte[] body = m.getBody();
        SendResult r = checked(producer.send(m, queue(n)));
        note(r, m, body, r.getQueueOffset(), r.getOffsetMsgId());
        return 1;
    }

    private int sendBatch(int n) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < BATCH; i++) {
            batch.add(message(n + i, n));
        }
        SendResult r = checked(producer.send(batch, queue(n)));
        String[] ids = r.getOffsetMsgId().split(",");
        for (int i = 0; i < BATCH; i++) {
            note(r, batch.get(i), batch.get(i).getBody(), r.getQueueOffset() + i, ids[i]);
        }
        return BATCH;
    }

    private static SendResult checked(SendResult r) {
        if (r.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not acknowledged: " + r);
        }
        return r;
    }

    private MessageQueue queue(int n) {
        int t = n % TOPICS.length;
        return new MessageQueue(TOPICS[t], broker, n / TOPICS.length % QUEUES[t]);
    }

    /** The message of number n; all of a batch go to the topic of its first. */
    private static Message message(int n, int first) {
        Random random = new Random(n);
        int size = n % 500 == 7 ? 6000 : 1 + random.nextInt(400);
        StringBuilder body = new StringBuilder("body " + n + " ");
        while (body.length() < size) {
            body.append((char) ('a' + random.nextInt(26)));
        }
        Message m = new Message(TOPICS[first % TOPICS.length], body.toString().getBytes(StandardCharsets.UTF_8));
        String tag = TAGS[n % TAGS.length];
        if (tag != null) {
            m.setTags(tag);
        }
        m.setKeys(List.of("key-" + n, "dozen-" + n / 12));
        m.setFlag(n);
        m.putUserProperty("number", "" + n);
        m.putUserProperty("text", "späße \"quoted\" {" + n + "} 消息");
        return m;
    }

    private void note(SendResult r, Message m, byte[] body, long offset, String offsetId) throws Exception {
        Map<String, String> properties = new HashMap<>(m.getProperties());
        properties.remove(MessageConst.PROPERTY_WAIT_STORE_MSG_OK); // brokers do not store it
        MessageQueue q = r.getMessageQueue();
        notes.write(new Sent(q.getTopic(), q.getQueueId(), offset, offsetId, body, properties).line());
        notes.newLine();
    }
}
