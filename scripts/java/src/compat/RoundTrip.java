package compat;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Sends through a name server and its broker and receives all of it again, each message once. */
final class RoundTrip {
    private static final int COUNT = 400;

    private RoundTrip() {
    }

    static void run(String namesrv, String broker) throws Exception {
        String topic = "round-trip-" + System.nanoTime();
        registered(namesrv, broker);
        DefaultMQProducer producer = new DefaultMQProducer("round-trip-producer");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        Map<String, Integer> got = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = consumer(namesrv, topic, got);
        try {
            for (int i = 0; i < COUNT; i++) {
                producer.send(new Message(topic, "Tag" + i % 2, "key-" + i, ("body " + i).getBytes(StandardCharsets.UTF_8)));
                if (i == 0) {
                    consumer.start();
                }
            }
            long end = System.currentTimeMillis() + 60_000;
            while (got.size() < COUNT && System.currentTimeMillis() < end) {
                Thread.sleep(100);
            }
            Thread.sleep(500);
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
        Map<String, Integer> want = new TreeMap<>();
        for (int i = 0; i < COUNT; i++) {
            want.put("Tag" + i % 2 + " key-" + i + " body " + i, 1);
        }
        Verify.same(want, new TreeMap<>(got), "received messages and how often");
        System.out.println(COUNT + " messages sent and received");
    }

    private static DefaultMQPushConsumer consumer(String namesrv, String topic, Map<String, Integer> got) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("round-trip-consumer-" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt m : messages) {
                String text = m.getTags() + " " + m.getKeys() + " " + new String(m.getBody(), StandardCharsets.UTF_8);
                got.merge(text, 1, Integer::sum);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    /** Waits until the name server gives the broker out. */
    private static void registered(String namesrv, String broker) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("round-trip-admin-" + System.nanoTime());
        admin.start();
        try {
            long end = System.currentTimeMillis() + 60_000;
            while (!admin.examineBrokerClusterInfo().getBrokerAddrTable().containsKey(broker)) {
                Verify.check(System.currentTimeMillis() < end, "%s does not appear in the cluster info", broker);
                Thread.sleep(200);
            }
        } finally {
            admin.shutdown();
        }
    }
}
