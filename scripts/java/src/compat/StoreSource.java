package compat;

import java.io.File;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
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
import org.apache.rocketmq.store.ha.HAService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Reads a store folder with the Java store library, which loads, recovers and serves it as in a broker. */
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
        withoutReplication();
        store.start();
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
    }

    /** The replication service would listen on every address. */
    private void withoutReplication() throws Exception {
        Field field = DefaultMessageStore.class.getDeclaredField("haService");
        field.setAccessible(true);
        field.set(store, Proxy.newProxyInstance(HAService.class.getClassLoader(), new Class<?>[] {HAService.class},
            (proxy, method, args) -> switch (method.getReturnType().getSimpleName()) {
                case "long" -> 0L;
                case "int" -> 0;
                case "boolean" -> false;
                default -> null;
            }));
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
                if (m.getTopic().equals(topic) && m.getKeys() != null && List.of(m.getKeys().split(" ")).contains(key)) {
                    found.add(m);
                }
            }
            return found;
        } finally {
            r.release();
        }
    }

    @Override
    public MessageExt byUniqueKey(String topic, String key) throws Exception {
        QueryMessageResult r = store.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
        try {
            for (ByteBuffer buffer : r.getMessageBufferList()) {
                MessageExt m = MessageDecoder.decode(buffer, true, true);
                if (m.getTopic().equals(topic)
                    && key.equals(m.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX))) {
                    return m;
                }
            }
            return null;
        } finally {
            r.release();
        }
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
