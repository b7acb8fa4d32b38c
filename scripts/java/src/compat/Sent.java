package compat;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** One acknowledged message as its sender knows it, and the file that keeps them: one line each, fields behind tabs. */
record Sent(String topic, int queue, long offset, String offsetId, byte[] body, Map<String, String> properties) {
    private static String pack(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    private static byte[] unpack(String text) {
        return Base64.getDecoder().decode(text);
    }

    static String packMap(Map<String, String> map) {
        StringBuilder text = new StringBuilder();
        new TreeMap<>(map).forEach((k, v) -> text.append(k).append('\1').append(v).append('\2'));
        return pack(text.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static Map<String, String> unpackMap(String text) {
        Map<String, String> map = new TreeMap<>();
        for (String pair : new String(unpack(text), StandardCharsets.UTF_8).split("\2")) {
            int at = pair.indexOf('\1');
            if (at > 0) {
                map.put(pair.substring(0, at), pair.substring(at + 1));
            }
        }
        return map;
    }

    String line() {
        return String.join("\t", topic, "" + queue, "" + offset, offsetId, pack(body), packMap(properties));
    }

    private static Sent parse(String line) {
        String[] f = line.split("\t", -1);
        return new Sent(f[0], Integer.parseInt(f[1]), Long.parseLong(f[2]), f[3], unpack(f[4]), unpackMap(f[5]));
    }

    static List<Sent> read(Path file) throws Exception {
        List<Sent> all = new ArrayList<>();
        for (String line : Files.readAllLines(file)) {
            all.add(parse(line));
        }
        return all;
    }
}
