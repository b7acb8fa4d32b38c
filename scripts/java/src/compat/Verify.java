package compat;

import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** Compares all that a source holds with what was sent, and writes it out, one line a message, every field. */
final class Verify {
    private final Source source;
    /** topic and queue -> offset -> message. */
    private final Map<String, TreeMap<Long, Sent>> queues = new TreeMap<>();
    private final List<Sent> all;

    private Verify(Source source, List<Sent> all) {
        this.source = source;
        this.all = all;
        for (Sent s : all) {
            Sent twice = queues.computeIfAbsent(s.topic() + " " + s.queue(), k -> new TreeMap<>()).put(s.offset(), s);
            check(twice == null, "offset %d of %s was given out twice", s.offset(), s.topic());
        }
    }

    static void run(Source source, Path sent, Path out, boolean index) throws Exception {
        Verify v = new Verify(source, Sent.read(sent));
        check(v.all.size() >= 10_000 && v.queues.size() >= 3, "too little was sent to prove anything");
        try (BufferedWriter w = Files.newBufferedWriter(out)) {
            for (var queue : v.queues.entrySet()) {
                v.contents(queue.getKey(), queue.getValue(), w);
            }
        }
        v.tags();
        v.offsetIds();
        if (index) {
            v.keys();
            v.uniqueKeys();
        }
        System.out.println(v.all.size() + " messages of " + v.queues.size() + " queues verified");
    }

    private void contents(String name, TreeMap<Long, Sent> want, BufferedWriter out) throws Exception {
        String topic = name.split(" ")[0];
        int queue = Integer.parseInt(name.split(" ")[1]);
        same(0L, source.minOffset(topic, queue), "smallest offset of " + name);
        same((long) want.size(), source.maxOffset(topic, queue), "largest offset of " + name);
        long expected = 0;
        for (MessageExt m : read(topic, queue, "*")) {
            same(expected, m.getQueueOffset(), "next offset of " + name);
            sameMessage(want.get(expected), m);
            out.write(line(m));
            out.newLine();
            expected++;
        }
        same((long) want.size(), expected, "messages of " + name);
    }

    private List<MessageExt> read(String topic, int queue, String tags) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        long offset = 0;
        long end = source.maxOffset(topic, queue);
        while (offset < end) {
            Source.Page page = source.pull(topic, queue, offset, tags);
            check(page.next() > offset, "a pull of %s/%d at %d does not get on", topic, queue, offset);
            found.addAll(page.messages());
            offset = page.next();
        }
        return found;
    }

    private void tags() throws Exception {
        for (String tags : List.of("TagA", "Aa", "TagB || BB", "Ünïcode", "nobody")) {
            Set<String> wanted = new HashSet<>(Arrays.asList(tags.split(" \\|\\| ")));
            for (var queue : queues.entrySet()) {
                List<Long> want = queue.getValue().values().stream()
                    .filter(s -> wanted.contains(s.properties().get(MessageConst.PROPERTY_TAGS))).map(Sent::offset).toList();
                String[] name = queue.getKey().split(" ");
                List<Long> got = read(name[0], Integer.parseInt(name[1]), tags).stream().map(MessageExt::getQueueOffset).toList();
                same(want, got, "offsets of " + queue.getKey() + " with tags " + tags);
            }
        }
    }

    private void keys() throws Exception {
        Map<String, Set<String>> byKey = new HashMap<>();
        for (Sent s : all) {
            for (String key : s.properties().get(MessageConst.PROPERTY_KEYS).split(" ")) {
                byKey.computeIfAbsent(s.topic() + " " + key, k -> new HashSet<>()).add(s.queue() + "/" + s.offset());
            }
        }
        List<String> names = byKey.keySet().stream().sorted().toList();
        for (int i = 0; i < names.size(); i += names.size() / 211) {
            String[] name = names.get(i).split(" ");
            Set<String> got = new HashSet<>();
            for (MessageExt m : source.byKey(name[0], name[1])) {
                check(got.add(m.getQueueId() + "/" + m.getQueueOffset()), "key %s found the same message twice", name[1]);
            }
            same(byKey.get(names.get(i)), got, "messages found by " + names.get(i));
        }
        same(List.of(), source.byKey(Produce.TOPICS[0], "no such key"), "messages of a key that nobody used");
    }

    private void offsetIds() throws Exception {
        for (int i = 0; i < all.size(); i += 97) {
            sameMessage(all.get(i), source.byOffsetId(all.get(i).topic(), all.get(i).offsetId()));
        }
    }

    private void uniqueKeys() throws Exception {
        for (int i = 0; i < all.size(); i += 97) {
            String key = all.get(i).properties().get(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
            sameMessage(all.get(i), source.byUniqueKey(all.get(i).topic(), key));
        }
    }

    private static void sameMessage(Sent want, MessageExt got) {
        String at = want.topic() + "/" + want.queue() + "/" + want.offset();
        check(got != null, "%s is not there", at);
        same(want.topic(), got.getTopic(), "topic of " + at);
        same(want.queue(), got.getQueueId(), "queue of " + at);
        same(want.offset(), got.getQueueOffset(), "offset of " + at);
        check(Arrays.equals(want.body(), got.getBody()), "the body of %s differs", at);
        same("" + got.getFlag(), want.properties().get("number"), "flag of " + at);
        for (var p : want.properties().entrySet()) {
            same(p.getValue(), got.getProperty(p.getKey()), "property " + p.getKey() + " of " + at);
        }
    }

    /** Every stored field, so that two readers of one store can be compared as text. */
    private static String line(MessageExt m) {
        Map<String, String> properties = new HashMap<>(m.getProperties());
        // Added by the reading client.
        properties.remove(MessageConst.PROPERTY_MIN_OFFSET);
        properties.remove(MessageConst.PROPERTY_MAX_OFFSET);
        return String.join("\t", m.getTopic(), "" + m.getQueueId(), "" + m.getQueueOffset(), "" + m.getCommitLogOffset(),
            "" + m.getStoreSize(), "" + m.getSysFlag(), "" + m.getFlag(), "" + m.getBodyCRC(), "" + m.getBornTimestamp(),
            "" + m.getBornHost(), "" + m.getStoreTimestamp(), "" + m.getStoreHost(), "" + m.getReconsumeTimes(),
            "" + m.getPreparedTransactionOffset(), Base64.getEncoder().encodeToString(m.getBody()), Sent.packMap(properties));
    }

    static void check(boolean ok, String what, Object... args) {
        if (!ok) {
            throw new AssertionError(String.format(what, args));
        }
    }

    static void same(Object want, Object got, String what) {
        check(Objects.equals(want, got), "%s: expected %s, got %s", what, want, got);
    }
}
