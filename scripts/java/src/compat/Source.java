package compat;

import java.util.List;
import org.apache.rocketmq.common.message.MessageExt;

/** Where stored messages are read from: a broker through the Java client, or a store folder through the Java store library. */
interface Source extends AutoCloseable {
    long minOffset(String topic, int queue) throws Exception;

    long maxOffset(String topic, int queue) throws Exception;

    /** Up to 32 messages of a queue from an offset on that match a tag expression, and the offset to go on from. */
    Page pull(String topic, int queue, long offset, String tags) throws Exception;

    /** At most 64 messages of a topic with a key. */
    List<MessageExt> byKey(String topic, String key) throws Exception;

    /** The message with a client's unique key. */
    MessageExt byUniqueKey(String topic, String key) throws Exception;

    /** The message with an offset message id. */
    MessageExt byOffsetId(String topic, String offsetId) throws Exception;

    record Page(List<MessageExt> messages, long next) {
    }
}
