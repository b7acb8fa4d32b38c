package compat;

import java.io.File;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.store.DefaultMessageFilter;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Reads a store folder with the Java store library: it loads and recovers as a broker does, and starts no service. */
final class StoreSource implements Source {
    private final DefaultMessageStore store;

    StoreSource(String root, int segmentBytes, int queueFileBytes) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(segmentBytes);
        config.setMappedFileSizeConsumeQueue(queueFileBytes);
        BrokerConfig broker = new BrokerConfig();
        store = new DefaultMessageStore(config, new BrokerStatsManager(broker), (topic, queue, offset, tag, time, bits, properties) -> { },
            broker, new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the Java store library cannot load " + root);
        }
    }

    @Override
    public long minOffset(String topic, int queue) {
        return store.getMinOffsetInQueue(topic, queue);
    }

    @Override
    public long maxOffset(String topic, int queue) throws Exception {
        return store.getMaxOffsetInQueue(topic, queue);
    }

    @Override
    public Page pull(String topic, int queue, long offset, String tags) throws Exception {
        SubscriptionData subscription = FilterAPI.buildSubscriptionData(topic, tags);
        GetMessageResult r =
            store.getMessage("compat-reader", topic, queue, offset, 32, new DefaultMessageFilter(subscription));
        try {
            List<MessageExt> found = new ArrayList<>();
            for (ByteBuffer buffer : r.getMessageBufferList()) {
                MessageExt m = MessageDecoder.decode(buffer, true, true);
                // Hashes may collide: a client compares the tags themselves.
                if (tags.equals("*") || subscription.getTagsSet().contains(m.getTags())) {
                    found.add(m);
                }
            }
            return new Page(found, r.getNextBeginOffset());
        } finally {
            r.release();
        }
    }

    @Override
    public List<MessageExt> byKey(String topic, String key) {
        QueryMessageResult r = store.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
        try {
            List<MessageExt> found = new ArrayList<>();
            for (ByteBuffer buffer : r.getMessageBufferList()) {
                MessageExt m = MessageDecoder.decode(buffer, true, true);
                if (m.getTopic().equals(topic) && hasKey(m, key)) {
                    found.add(m);
                }
            }
            return found;
        } finally {
            r.release();
        }
    }

    private static boolean hasKey(MessageExt m, String key) {
        return key.equals(m.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX))
            || m.getKeys() != null && List.of(m.getKeys().split(" ")).contains(key);
    }

    @Override
    public MessageExt byOffsetId(String topic, String offsetId) throws Exception {
        return store.lookMessageByOffset(MessageDecoder.decodeMessageId(offsetId).getOffset());
    }

    @Override
    public void close() {
        store.shutdown();
    }
}
