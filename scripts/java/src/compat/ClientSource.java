package compat;

import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads through the public Java client. */
@SuppressWarnings("deprecation") // the pull consumer is the one that reads a chosen queue from a chosen offset
final class ClientSource implements Source {
    private final DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("compat-reader");
    private final String broker;

    ClientSource(String namesrv, String broker) throws MQClientException {
        this.broker = broker;
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("compat-reader-" + System.nanoTime());
        consumer.start();
    }

    private MessageQueue queue(String topic, int queue) {
        return new MessageQueue(topic, broker, queue);
    }

    @Override
    public long minOffset(String topic, int queue) throws Exception {
        return consumer.minOffset(queue(topic, queue));
    }

    @Override
    public long maxOffset(String topic, int queue) throws Exception {
        return consumer.maxOffset(queue(topic, queue));
    }

    @Override
    public Page pull(String topic, int queue, long offset, String tags) throws Exception {
        PullResult r = consumer.pull(queue(topic, queue), tags, offset, 32);
        boolean found = r.getPullStatus() == PullStatus.FOUND;
        return new Page(found ? r.getMsgFoundList() : List.of(), r.getNextBeginOffset());
    }

    @Override
    public List<MessageExt> byKey(String topic, String key) throws Exception {
        try {
            return consumer.queryMessage(topic, key, 64, 0, System.currentTimeMillis() + 60_000).getMessageList();
        } catch (MQClientException e) {
            if (e.getMessage().contains("no message")) {
                return List.of();
            }
            throw e;
        }
    }

    @Override
    public MessageExt byUniqueKey(String topic, String key) throws Exception {
        return consumer.getDefaultMQPullConsumerImpl().queryMessageByUniqKey(topic, key);
    }

    @Override
    public MessageExt byOffsetId(String topic, String offsetId) throws Exception {
        return consumer.viewMessage(topic, offsetId);
    }

    @Override
    public void close() {
        consumer.shutdown();
    }
}
