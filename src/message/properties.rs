//! The properties text of a message: `name 0x01 value 0x02`, repeated.
//!
//! Role: reading the text by Java's rules and rewriting it to the very bytes that a Java broker would store. Java keeps
//! properties in a `HashMap` of initial capacity 128 and writes them in its iteration order: by bucket, and by age within
//! a bucket. [`PropertyList`] reproduces that order. Pairs that are malformed (no separator, empty name, empty value) are
//! dropped; of equal names the last value counts, at the place of the first. No allocation up to 16 properties.

use crate::hash::{java_hash, java_hash_ascii};
use crate::property_reader::{PairSink, read_pairs};
use memchr::memchr;
use smallvec::SmallVec;

/// Between a name and its value.
pub const NAME_VALUE_SEPARATOR: u8 = 1;
/// After each pair.
pub const PROPERTY_SEPARATOR: u8 = 2;
/// Longest properties text of a record, in bytes: its length is a signed 16-bit number.
pub const MAX_PROPERTIES_BYTES: usize = i16::MAX as usize;

/// Names of the properties with a meaning.
pub mod name {
    /// Keys for queries, blank separated.
    pub const KEYS: &[u8] = b"KEYS";
    /// The tag.
    pub const TAGS: &[u8] = b"TAGS";
    /// `false`: the sender does not wait for the flush.
    pub const WAIT: &[u8] = b"WAIT";
    /// Delay level.
    pub const DELAY: &[u8] = b"DELAY";
    /// The topic that a retried message came from.
    pub const RETRY_TOPIC: &[u8] = b"RETRY_TOPIC";
    /// The topic that a parked message belongs to.
    pub const REAL_TOPIC: &[u8] = b"REAL_TOPIC";
    /// The queue that a parked message belongs to.
    pub const REAL_QUEUE_ID: &[u8] = b"REAL_QID";
    /// `true`: a half message.
    pub const TRANSACTION_PREPARED: &[u8] = b"TRAN_MSG";
    /// The producer group of a transaction.
    pub const PRODUCER_GROUP: &[u8] = b"PGROUP";
    /// The first sender's offset message id.
    pub const ORIGIN_MESSAGE_ID: &[u8] = b"ORIGIN_MESSAGE_ID";
    /// How often it was retried, by clients that send the retry themselves.
    pub const RECONSUME_TIME: &[u8] = b"RECONSUME_TIME";
    /// The limit of retries, by clients that send the retry themselves.
    pub const MAX_RECONSUME_TIMES: &[u8] = b"MAX_RECONSUME_TIMES";
    /// The broker's region.
    pub const MSG_REGION: &[u8] = b"MSG_REGION";
    /// Whether clients trace.
    pub const TRACE_ON: &[u8] = b"TRACE_ON";
    /// The client's unique id.
    pub const UNIQ_KEY: &[u8] = b"UNIQ_KEY";
    /// The broker's cluster.
    pub const CLUSTER: &[u8] = b"CLUSTER";
    /// Number of messages of an inner batch.
    pub const INNER_NUM: &[u8] = b"INNER_NUM";
    /// Transaction id.
    pub const TRANSACTION_ID: &[u8] = b"__transactionId__";
    /// How often a half message was checked.
    pub const TRANSACTION_CHECK_TIMES: &[u8] = b"TRANSACTION_CHECK_TIMES";
    /// First queue offset of a half message that a Java broker wrote again because it is not to be checked yet.
    pub const TRANSACTION_PREPARED_QUEUE_OFFSET: &[u8] = b"TRAN_PREPARED_QUEUE_OFFSET";
    /// Seconds before a half message is checked.
    pub const CHECK_IMMUNITY_TIME: &[u8] = b"CHECK_IMMUNITY_TIME_IN_SECONDS";
    /// Kind of a reply message.
    pub const MSG_TYPE: &[u8] = b"MSG_TYPE";
    /// POP check point of a delivered message.
    pub const POP_CK: &[u8] = b"POP_CK";
    /// Key that chooses the queue of an ordered message.
    pub const SHARDING_KEY: &[u8] = b"__SHARDINGKEY";
    /// Light message queues that get the message too.
    pub const INNER_MULTI_DISPATCH: &[u8] = b"INNER_MULTI_DISPATCH";
    /// Offsets in those queues.
    pub const INNER_MULTI_QUEUE_OFFSET: &[u8] = b"INNER_MULTI_QUEUE_OFFSET";
    /// Timed message: delay in seconds.
    pub const TIMER_DELAY_SEC: &[u8] = b"TIMER_DELAY_SEC";
    /// Timed message: delay in ms.
    pub const TIMER_DELAY_MS: &[u8] = b"TIMER_DELAY_MS";
    /// Timed message: due time in ms.
    pub const TIMER_DELIVER_MS: &[u8] = b"TIMER_DELIVER_MS";
    /// Timed message: due time as kept by the broker.
    pub const TIMER_OUT_MS: &[u8] = b"TIMER_OUT_MS";
    /// Timed message: when the broker took it up.
    pub const TIMER_ENQUEUE_MS: &[u8] = b"TIMER_ENQUEUE_MS";
    /// Timed message: when the broker delivered it.
    pub const TIMER_DEQUEUE_MS: &[u8] = b"TIMER_DEQUEUE_MS";
    /// Timed message to cancel.
    pub const TIMER_DELETE_UNIQUE_KEY: &[u8] = b"TIMER_DEL_UNIQKEY";
    /// When the message was made, ms since 1970.
    pub const BORN_TIMESTAMP: &[u8] = b"BORN_TIMESTAMP";
    /// Links request and reply.
    pub const CORRELATION_ID: &[u8] = b"CORRELATION_ID";
    /// Client that waits for the reply.
    pub const REPLY_TO_CLIENT: &[u8] = b"REPLY_TO_CLIENT";
    /// CRC of the record before it, when the broker appends one.
    pub const CRC32: &[u8] = b"__CRC32#";
}

/// The well-formed pairs of a properties text, in its order.
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    rest: &'a [u8],
}

/// Iterates the well-formed pairs of a properties text.
#[must_use]
pub fn pairs(text: &[u8]) -> Pairs<'_> {
    Pairs { rest: text }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let end = memchr(PROPERTY_SEPARATOR, self.rest).unwrap_or(self.rest.len());
            let pair = &self.rest[..end];
            self.rest = self.rest.get(end + 1..).unwrap_or_default();
            if let Some(at) = memchr(NAME_VALUE_SEPARATOR, pair)
                && at > 0
                && at + 1 < pair.len()
            {
                return Some((&pair[..at], &pair[at + 1..]));
            }
        }
        None
    }
}

/// The value of a name; of several, the last (as Java's map has it).
#[must_use]
pub fn find<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    pairs(text).filter(|(key, _)| *key == name).last().map(|(_, value)| value)
}

/// The values of several names, found in one pass; as [`find`] gives each.
#[must_use]
pub fn find_each<'a, const N: usize>(text: &'a [u8], names: [&[u8]; N]) -> [Option<&'a [u8]>; N] {
    let mut found = [None; N];
    for (key, value) in pairs(text) {
        if let Some(at) = names.iter().position(|name| *name == key) {
            found[at] = Some(value);
        }
    }
    found
}

/// What a broker adds to each message that is sent alone.
#[derive(Clone, Copy, Debug)]
pub struct SendStamp<'a> {
    /// `regionId` of the broker.
    pub region: &'a [u8],
    /// `traceOn` of the broker.
    pub trace_on: bool,
    /// `brokerClusterName`.
    pub cluster: &'a [u8],
}

/// Where the properties of a record to be written come from.
#[derive(Clone, Copy, Debug)]
pub enum PropertiesSource<'a> {
    /// Exactly these bytes (members of a batch, copies of a stored record).
    Text(&'a [u8]),
    /// A list, in Java's order.
    List(PropertyView<'a>),
}

/// A [`PropertyList`] to be written.
#[derive(Clone, Copy, Debug)]
pub struct PropertyView<'a> {
    entries: &'a [Entry<'a>],
    order: &'a [u64],
    bytes: usize,
}

impl<'a> PropertyView<'a> {
    #[inline]
    fn iter(self) -> impl Iterator<Item = &'a Entry<'a>> {
        self.order.iter().map(move |&place| &self.entries[index_of(place)])
    }

    fn write(self, out: &mut Vec<u8>) {
        self.iter().for_each(|entry| entry.write(out));
    }
}

impl<'a> PropertiesSource<'a> {
    /// Length of the text, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::List(list) => list.bytes,
        }
    }

    /// Appends the text.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => out.extend_from_slice(text),
            Self::List(list) => list.write(out),
        }
    }

    /// Gives each well-formed pair to `visit`, in the order of the text.
    #[inline]
    pub fn each(&self, mut visit: impl FnMut(&'a [u8], &'a [u8])) {
        match self {
            Self::Text(text) => pairs(text).for_each(|(name, value)| visit(name, value)),
            Self::List(list) => list.iter().for_each(|entry| visit(entry.name, entry.value)),
        }
    }

    /// The value of a name.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<&'a [u8]> {
        match self {
            Self::Text(text) => find(text, name),
            Self::List(list) => list.iter().find(|entry| entry.name == name).map(|entry| entry.value),
        }
    }
}

/// A pair.
#[derive(Clone, Copy, Debug)]
struct Entry<'a> {
    name: &'a [u8],
    value: &'a [u8],
    hash: u32,
}

impl Entry<'_> {
    /// Bytes of the pair in a text, both separators included.
    #[inline]
    fn encoded_len(&self) -> usize {
        self.name.len() + self.value.len() + 2
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.name);
        out.push(NAME_VALUE_SEPARATOR);
        out.extend_from_slice(self.value);
        out.push(PROPERTY_SEPARATOR);
    }
}

/// Properties as Java's `HashMap<String, String>(128)` holds them, borrowed from the texts that they came from.
#[derive(Clone, Debug)]
pub struct PropertyList<'a> {
    /// In the order of age, with those that were taken out.
    entries: SmallVec<[Entry<'a>; 16]>,
    /// The places of those that are there, ascending: by bucket, and by age within a bucket. See [`place`].
    order: SmallVec<[u64; 16]>,
    /// Buckets of the map: a power of two.
    capacity: u32,
    bytes: usize,
}

const INITIAL_CAPACITY: u32 = 128;
/// Lists longer than this are built by sorting, not by insertion, so that a text of 8,000 pairs stays cheap.
const INSERTION_LIMIT: usize = 64;

/// The bucket of an entry above its index.
#[inline]
const fn place(hash: u32, capacity: u32, index: usize) -> u64 {
    (bucket_of(hash, capacity) as u64) << 32 | index as u64
}

#[inline]
const fn index_of(place: u64) -> usize {
    (place & 0xFFFF_FFFF) as usize
}

impl Default for PropertyList<'_> {
    fn default() -> Self {
        Self { entries: SmallVec::new(), order: SmallVec::new(), capacity: INITIAL_CAPACITY, bytes: 0 }
    }
}

/// Keeps the first pairs only: more are read by [`PropertyList::parse_many`].
struct FirstPairs<'l, 'a>(&'l mut PropertyList<'a>);

impl<'a> PairSink<'a> for FirstPairs<'_, 'a> {
    #[inline]
    fn pair(&mut self, name: &'a [u8], value: &'a [u8], hash: u32) -> bool {
        let room = self.0.order.len() < INSERTION_LIMIT;
        if room {
            self.0.insert(Entry { name, value, hash });
        }
        room
    }
}

struct AllPairs<'l, 'a>(&'l mut Vec<(usize, Entry<'a>)>);

impl<'a> PairSink<'a> for AllPairs<'_, 'a> {
    fn pair(&mut self, name: &'a [u8], value: &'a [u8], hash: u32) -> bool {
        self.0.push((self.0.len(), Entry { name, value, hash }));
        true
    }
}

impl<'a> PropertyList<'a> {
    /// The list of a text.
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Self {
        let mut list = Self::default();
        list.read(text);
        list
    }

    /// Becomes the list of a text, in place: a list is too large to be handed around on the path of a message.
    pub fn read(&mut self, text: &'a [u8]) {
        self.clear();
        if read_pairs::<false>(text, &mut FirstPairs(self)).is_err() {
            *self = Self::parse_many(text);
        }
    }

    /// As [`Self::read`] of the text that this inside of a JSON string stands for, without a copy of it. Gives `false`, with
    /// the list empty, where that takes the text itself: escapes other than the separators', or very many pairs.
    #[must_use]
    pub fn read_escaped(&mut self, raw: &'a [u8]) -> bool {
        self.clear();
        let read = read_pairs::<true>(raw, &mut FirstPairs(self)).is_ok();
        if !read {
            self.clear();
        }
        read
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
        (self.capacity, self.bytes) = (INITIAL_CAPACITY, 0);
    }

    /// Adds everything that a broker adds to a message that is sent alone, and takes out POP_CK. `unique_id` is used
    /// when the message has none.
    pub fn stamp(&mut self, stamp: &SendStamp<'a>, unique_id: Option<&'a [u8]>) {
        const REGION: u32 = java_hash_ascii(name::MSG_REGION) as u32;
        const TRACE: u32 = java_hash_ascii(name::TRACE_ON) as u32;
        const UNIQUE: u32 = java_hash_ascii(name::UNIQ_KEY) as u32;
        const CLUSTER: u32 = java_hash_ascii(name::CLUSTER) as u32;
        let trace: &[u8] = if stamp.trace_on { b"true" } else { b"false" };
        self.insert(Entry { name: name::MSG_REGION, value: stamp.region, hash: REGION });
        self.insert(Entry { name: name::TRACE_ON, value: trace, hash: TRACE });
        if let Some(id) = unique_id
            && self.position(name::UNIQ_KEY).is_none()
        {
            self.insert(Entry { name: name::UNIQ_KEY, value: id, hash: UNIQUE });
        }
        self.insert(Entry { name: name::CLUSTER, value: stamp.cluster, hash: CLUSTER });
        self.remove(name::POP_CK);
    }

    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.position(name).map(|at| self.entries[index_of(self.order[at])].value)
    }

    /// Whether a name is there.
    #[must_use]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.position(name).is_some()
    }

    /// Sets a value: in the old place when the name is there, else as Java's map places it.
    pub fn put(&mut self, name: &'a [u8], value: &'a [u8]) {
        self.insert(Entry { name, value, hash: java_hash(name) as u32 });
    }

    /// Takes a name out; tells whether it was there.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let at = self.position(name);
        if let Some(at) = at {
            let gone = self.order.remove(at);
            self.bytes -= self.entries[index_of(gone)].encoded_len();
        }
        at.is_some()
    }

    /// The pairs in Java's order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.order.iter().map(|&place| {
            let entry = &self.entries[index_of(place)];
            (entry.name, entry.value)
        })
    }

    /// Number of properties.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Length of the text, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.bytes
    }

    /// Appends the text: each pair with its separator after it.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.view().write(out);
    }

    /// The list as it is now, to be written into a record.
    #[must_use]
    pub fn view(&self) -> PropertyView<'_> {
        PropertyView { entries: &self.entries, order: &self.order, bytes: self.bytes }
    }

    /// Where a name stands in the order.
    #[inline]
    fn position(&self, name: &[u8]) -> Option<usize> {
        self.order.iter().position(|&place| self.entries[index_of(place)].name == name)
    }

    #[inline]
    fn insert(&mut self, entry: Entry<'a>) {
        let new = place(entry.hash, self.capacity, self.entries.len());
        let behind = self.order.iter().rposition(|&old| old < new).map_or(0, |at| at + 1);
        // An equal name lies in the same bucket.
        let bucket = new >> 32;
        for &old in self.order[..behind].iter().rev().take_while(|&&old| old >> 32 == bucket) {
            let old = &mut self.entries[index_of(old)];
            if old.hash == entry.hash && old.name == entry.name {
                self.bytes += entry.encoded_len();
                self.bytes -= old.encoded_len();
                *old = entry;
                return;
            }
        }
        self.bytes += entry.encoded_len();
        self.entries.push(entry);
        self.order.push(new);
        // Those behind it move up: few, so that a loop is faster than a call.
        for at in (behind..self.order.len() - 1).rev() {
            self.order[at + 1] = self.order[at];
        }
        self.order[behind] = new;
        if self.order.len() > (self.capacity / 4 * 3) as usize {
            self.grow();
        }
    }

    /// Doubles the table as Java does: when more than three quarters are used.
    #[cold]
    fn grow(&mut self) {
        while self.order.len() > (self.capacity / 4 * 3) as usize {
            self.capacity *= 2;
        }
        for old in &mut self.order {
            let index = index_of(*old);
            *old = place(self.entries[index].hash, self.capacity, index);
        }
        self.order.sort_unstable();
    }

    #[cold]
    fn parse_many(text: &'a [u8]) -> Self {
        let mut list = Self::default();
        let mut all = Vec::new();
        let read = read_pairs::<false>(text, &mut AllPairs(&mut all));
        debug_assert!(read.is_ok(), "a plain text is read to its end");
        // Equal names side by side, oldest first: the first keeps its place and the last stands for all.
        all.sort_by(|(a_age, a), (b_age, b)| (a.hash, a.name, a_age).cmp(&(b.hash, b.name, b_age)));
        all.dedup_by(|(_, later), (_, first)| {
            let same = later.name == first.name;
            if same {
                *first = *later;
            }
            same
        });
        all.sort_by_key(|(age, _)| *age);
        list.bytes = all.iter().map(|(_, entry)| entry.encoded_len()).sum();
        list.entries = all.into_iter().map(|(_, entry)| entry).collect();
        list.order = (0..list.entries.len() as u64).collect();
        list.grow();
        list
    }
}

const fn bucket_of(hash: u32, capacity: u32) -> u32 {
    (hash ^ (hash >> 16)) & (capacity - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(list: &PropertyList<'_>) -> String {
        let mut out = Vec::new();
        list.write(&mut out);
        assert_eq!(out.len(), list.encoded_len());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn malformed_pairs_are_dropped() {
        for broken in ["\x02\x02", "\x01v\x02", "k\x02", "\x01\x02", "k\x01\x02", "\x02k\x02\x02", "", "k", "k\x01"] {
            assert_eq!(pairs(broken.as_bytes()).count(), 0, "{broken:?}");
            assert!(PropertyList::parse(broken.as_bytes()).is_empty(), "{broken:?}");
            let after = format!("{broken}\x02TAGS\x01good");
            assert_eq!(find(after.as_bytes(), b"TAGS"), (broken != "k\x01").then_some(&b"good"[..]).or(Some(b"good")));
        }
        assert_eq!(find(b"k\x01a\x01b\x02", b"k"), Some(&b"a\x01b"[..]));
        assert_eq!(find(b"a\x011\x02b\x012\x02a\x013", b"a"), Some(&b"3"[..]));
        assert_eq!(find(b"a\x011", b"b"), None);
    }

    #[test]
    fn stored_as_the_java_broker_stores_it() {
        // Sent and stored texts of a 5.4.0 broker.
        let stamp = SendStamp { region: b"DefaultRegion", trace_on: true, cluster: b"DefaultCluster" };
        let mut list = PropertyList::parse(b"TAGS\x01A\x02KEYS\x01k1 k2\x02WAIT\x01true\x02z\x011\x02POP_CK\x01xx\x02");
        list.stamp(&stamp, Some(b"FD01"));
        assert_eq!(
            text(&list),
            "MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x01FD01\x02CLUSTER\x01DefaultCluster\x02TAGS\x01A\x02KEYS\x01k1 k2\x02WAIT\x01true\x02TRACE_ON\x01true\x02z\x011\x02"
        );
        let mut list = PropertyList::parse(b"UNIQ_KEY\x017F00\x02WAIT\x01true\x02TAGS\x01TagA");
        list.stamp(&stamp, Some(b"other"));
        assert_eq!(
            text(&list),
            "MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x017F00\x02CLUSTER\x01DefaultCluster\x02TAGS\x01TagA\x02WAIT\x01true\x02TRACE_ON\x01true\x02"
        );
    }

    /// Java's map, written plainly: a list of buckets.
    fn model(pairs: &[(String, String)]) -> String {
        let mut table: Vec<Vec<(String, String)>> = vec![Vec::new(); 128];
        let mut size = 0;
        for (name, value) in pairs {
            let hash = java_hash(name.as_bytes()) as u32;
            let at = bucket_of(hash, table.len() as u32) as usize;
            if let Some(old) = table[at].iter_mut().find(|(key, _)| key == name) {
                old.1.clone_from(value);
                continue;
            }
            table[at].push((name.clone(), value.clone()));
            size += 1;
            if size > table.len() * 3 / 4 {
                let width = table.len() * 2;
                let mut wider = vec![Vec::new(); width];
                for pair in table.into_iter().flatten() {
                    let bucket = bucket_of(java_hash(pair.0.as_bytes()) as u32, width as u32);
                    wider[bucket as usize].push(pair);
                }
                table = wider;
            }
        }
        table.into_iter().flatten().map(|(name, value)| format!("{name}\x01{value}\x02")).collect()
    }

    proptest! {
        #[test]
        fn order_is_that_of_a_java_map(pairs in prop::collection::vec(("[a-dé]{1,3}", "[a-z]{1,4}"), 0..300), cut in any::<bool>()) {
            let mut sent: String = pairs.iter().map(|(name, value)| format!("{name}\x01{value}\x02")).collect();
            if cut { sent.pop(); }
            let list = PropertyList::parse(sent.as_bytes());
            prop_assert_eq!(text(&list), model(&pairs));
            let raw = sent.replace('\u{1}', "\\u0001").replace('\u{2}', "\\u0002");
            let mut escaped = PropertyList::default();
            if escaped.read_escaped(raw.as_bytes()) {
                prop_assert_eq!(text(&escaped), model(&pairs));
            } else {
                prop_assert!(pairs.len() > INSERTION_LIMIT && escaped.is_empty());
            }
            for (name, value) in super::pairs(sent.as_bytes()) {
                let found = find(sent.as_bytes(), name).unwrap();
                prop_assert_eq!(list.get(name), Some(found));
                prop_assert!(value.len() <= 4);
            }
        }

        #[test]
        fn put_and_remove_keep_the_order(pairs in prop::collection::vec(("[a-z]{1,2}", "[a-z]{1,4}"), 0..120), gone in "[a-z]{1,2}") {
            let mut list = PropertyList::default();
            for (name, value) in &pairs { list.put(name.as_bytes(), value.as_bytes()); }
            prop_assert_eq!(text(&list), model(&pairs));
            let had = list.contains(gone.as_bytes());
            prop_assert_eq!(list.remove(gone.as_bytes()), had);
            prop_assert!(!list.contains(gone.as_bytes()));
            prop_assert!(text(&list).len() == list.encoded_len());
        }
    }
}
