//! SQL92 filters of the groups, as heartbeats brought them. A pure table with times passed in.
//!
//! A filter is registered with the client's version and stays when the group's clients are gone: it is dead then, and forgotten a
//! day later. A newer version replaces an older one; an older one is ignored while the group lives. One that cannot be compiled
//! takes the place of what was there: its pulls are told that there is none. Unlike Java's broker, a filter of clients that are gone
//! never outlives its version: clients whose clock was set back are filtered by what they say now.

use super::bloom;
use crate::filter::Expression;
use crate::snapshot::{GroupConsumers, PropertyFilter, Subscription};
use crate::work::{SQL92, is_tag_kind};
use remoting::Json;
use remoting::json::JsonRef;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A dead filter is kept this long, in ms (Java: 24 hours).
const KEEP_DEAD_MS: i64 = 24 * 3600 * 1000;
/// After a start nobody is there yet: as if all had left this long ago, in ms (as Java has it).
const DEAD_AT_START_MS: i64 = 30_000;
/// Filters of all groups. Beyond, new ones are not registered.
pub const MAX_FILTERS: usize = 1 << 16;

/// A registered filter.
#[derive(Clone, Debug, PartialEq)]
struct Registered {
    expression: Arc<Expression>,
    /// The client's version.
    version: i64,
    /// When it came, ms since 1970.
    born_ms: i64,
    /// When its clients were gone; not less than `born_ms` means dead.
    dead_ms: i64,
}

impl Registered {
    fn is_dead(&self) -> bool {
        self.dead_ms >= self.born_ms
    }
}

/// The filters of all groups.
#[derive(Debug, Default)]
pub struct FilterBook {
    /// By group, then topic.
    groups: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Registered>>,
    count: usize,
    dirty: bool,
}

impl FilterBook {
    /// Takes the subscriptions of a heartbeat, which are all that the group's client has. Returns whether a filter differs.
    pub fn register(&mut self, group: &Arc<str>, list: &[Subscription], now_ms: i64) -> bool {
        let mut changed = false;
        for subscription in list.iter().filter(|one| !is_tag(one) && !one.expression.is_empty()) {
            changed |= self.register_one(group, subscription, now_ms);
        }
        for (topic, registered) in self.groups.get_mut(group).into_iter().flatten() {
            if !registered.is_dead() && list.iter().all(|one| one.topic != *topic) {
                registered.dead_ms = registered.born_ms.max(now_ms);
                self.dirty = true;
            }
        }
        changed
    }

    fn register_one(&mut self, group: &Arc<str>, subscription: &Subscription, now_ms: i64) -> bool {
        let version = subscription.version;
        let old = self.groups.get_mut(group).and_then(|topics| topics.get_mut(&subscription.topic));
        let known = old.is_some();
        if let Some(old) = old {
            let same = old.expression.text() == &*subscription.expression;
            let dead = old.is_dead();
            if version == old.version || (same && version > old.version) {
                let changed = version != old.version;
                self.dirty |= changed || dead;
                old.version = version;
                old.dead_ms = if dead { 0 } else { old.dead_ms };
                return changed;
            }
            if version < old.version && !dead {
                return false;
            }
        }
        match compile(group, subscription) {
            Some(expression) if known || self.count < MAX_FILTERS => {
                let registered = Registered { expression, version, born_ms: now_ms, dead_ms: 0 };
                self.groups.entry(group.clone()).or_default().insert(subscription.topic.clone(), registered);
                self.count += usize::from(!known);
                self.dirty = true;
                true
            }
            _ => self.remove(group, &subscription.topic),
        }
    }

    fn remove(&mut self, group: &str, topic: &str) -> bool {
        let Some(topics) = self.groups.get_mut(group) else { return false };
        let removed = topics.remove(topic).is_some();
        if topics.is_empty() {
            self.groups.remove(group);
        }
        self.count -= usize::from(removed);
        self.dirty |= removed;
        removed
    }

    /// The last client of a group is gone.
    pub fn unregister(&mut self, group: &str, now_ms: i64) {
        for registered in self.groups.get_mut(group).into_iter().flat_map(BTreeMap::values_mut) {
            if !registered.is_dead() {
                registered.dead_ms = registered.born_ms.max(now_ms);
                self.dirty = true;
            }
        }
    }

    /// Puts the filters of a group beside its subscriptions.
    pub fn attach(&self, group: &str, consumers: &mut GroupConsumers) {
        let Some(topics) = self.groups.get(group) else { return };
        for (topic, subscription) in &mut consumers.subscriptions {
            if let Some(registered) = topics.get(topic).filter(|_| !is_tag(subscription)) {
                let Registered { expression, version, .. } = registered;
                let filter = PropertyFilter { expression: expression.clone(), version: *version };
                Arc::make_mut(subscription).filter = Some(filter);
            }
        }
    }

    /// Forgets what is dead for a day.
    pub fn clean(&mut self, now_ms: i64) {
        let before = self.count;
        for topics in self.groups.values_mut() {
            topics.retain(|_, one| !one.is_dead() || now_ms - one.dead_ms < KEEP_DEAD_MS);
        }
        self.groups.retain(|_, topics| !topics.is_empty());
        self.count = self.groups.values().map(BTreeMap::len).sum();
        self.dirty |= self.count != before;
    }

    /// Whether something changed since the last time this was asked.
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// The last encoding was not written.
    pub fn set_dirty(&mut self) {
        self.dirty = true;
    }

    /// Java's `consumerFilter.json`.
    pub fn encode(&self) -> Vec<u8> {
        let mut by_topic: BTreeMap<&Arc<str>, BTreeMap<String, Json>> = BTreeMap::new();
        for (group, topics) in &self.groups {
            for (topic, one) in topics {
                by_topic.entry(topic).or_default().insert(group.to_string(), one.to_json(group, topic));
            }
        }
        let topics = by_topic.into_iter().map(|(topic, groups)| {
            let data = Json::bean([("groupFilterData", Json::map(groups)), ("topic", Json::from(&**topic))]);
            (topic.to_string(), data)
        });
        Json::bean([("filterDataByTopic", Json::map(topics))]).to_pretty()
    }

    /// Reads Java's `consumerFilter.json`. A filter that cannot be compiled is left out.
    ///
    /// # Errors
    /// The text is not JSON.
    pub fn decode(bytes: &[u8], now_ms: i64) -> Result<Self, String> {
        let json = JsonRef::parse(bytes).map_err(|error| error.to_string())?;
        let mut book = Self::default();
        for (_, topic) in json.get("filterDataByTopic").entries() {
            for (_, data) in topic.get("groupFilterData").entries() {
                let (group, topic) = (data.get("consumerGroup").string(), data.get("topic").string());
                let Some(registered) = Registered::from_json(data, now_ms) else {
                    tracing::warn!(group, topic, "a filter of consumerFilter.json cannot be compiled");
                    continue;
                };
                let known = book.groups.entry(group.into()).or_default().insert(topic.into(), registered).is_some();
                book.count += usize::from(!known);
            }
        }
        Ok(book)
    }
}

impl Registered {
    fn to_json(&self, group: &str, topic: &str) -> Json {
        let positions = bloom::positions(group, topic);
        let bloom = Json::bean([
            ("bitNum", Json::from(i64::from(bloom::BITS))),
            ("bitPos", Json::list(positions.map(i64::from))),
        ]);
        Json::bean([
            ("bloomFilterData", bloom),
            ("bornTime", Json::from(self.born_ms)),
            ("clientVersion", Json::from(self.version)),
            ("consumerGroup", Json::from(group)),
            ("dead", Json::from(self.is_dead())),
            ("deadTime", Json::from(self.dead_ms)),
            ("expression", Json::from(self.expression.text())),
            ("expressionType", Json::from("SQL92")),
            ("topic", Json::from(topic)),
        ])
    }

    fn from_json(data: JsonRef<'_>, now_ms: i64) -> Option<Self> {
        if data.get("expressionType").as_str()?.as_bytes() != SQL92 {
            return None;
        }
        let expression = Arc::new(Expression::compile(&data.get("expression").as_str()?).ok()?);
        let number = |name: &str| data.get(name).as_i64().unwrap_or(0);
        let born_ms = number("bornTime");
        let dead_ms = match number("deadTime") {
            0 => born_ms.max(now_ms - DEAD_AT_START_MS),
            dead_ms => dead_ms,
        };
        Some(Self { expression, version: number("clientVersion"), born_ms, dead_ms })
    }
}

fn is_tag(subscription: &Subscription) -> bool {
    is_tag_kind(Some(subscription.expression_type.as_bytes()))
}

fn compile(group: &str, subscription: &Subscription) -> Option<Arc<Expression>> {
    let (topic, text) = (&*subscription.topic, &*subscription.expression);
    if subscription.expression_type.as_bytes() != SQL92 {
        tracing::warn!(group, topic, kind = &*subscription.expression_type, "a filter of an unknown type");
        return None;
    }
    // A client repeats its filter with each heartbeat, however long it is.
    let start = &text[..text.floor_char_boundary(100)];
    match Expression::compile(text) {
        Ok(expression) => {
            if expression.ignores_rest() {
                tracing::warn!(group, topic, start, "a filter has no effect from where its expression ends");
            }
            Some(Arc::new(expression))
        }
        Err(error) => {
            tracing::warn!(group, topic, start, %error, "a filter cannot be compiled");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::MessageModel;

    fn sub(topic: &str, kind: &str, expression: &str, version: i64) -> Subscription {
        Subscription {
            topic: topic.into(),
            expression: expression.into(),
            expression_type: kind.into(),
            version,
            codes: vec![],
            tags: vec![],
            class_filter_mode: false,
            filter: None,
        }
    }

    fn sql(expression: &str, version: i64) -> Vec<Subscription> {
        vec![sub("t", "SQL92", expression, version)]
    }

    /// Text and version of what is registered for `t`, and whether it is dead.
    fn of(book: &FilterBook) -> Option<(&str, i64, bool)> {
        let one = book.groups.get("g")?.get("t")?;
        Some((one.expression.text(), one.version, one.is_dead()))
    }

    #[test]
    fn newer_versions_count() {
        let (mut book, g) = (FilterBook::default(), Arc::<str>::from("g"));
        for (expression, version, changed, expected) in [
            ("a =", 1, false, None),
            ("", 1, false, None),
            ("a = 1", 5, true, Some(("a = 1", 5, false))),
            ("a = 1", 5, false, Some(("a = 1", 5, false))),
            ("a = 2", 5, false, Some(("a = 1", 5, false))),
            ("a = 2", 4, false, Some(("a = 1", 5, false))),
            ("a = 1", 6, true, Some(("a = 1", 6, false))),
            ("a = 2", 7, true, Some(("a = 2", 7, false))),
            ("a = ", 8, true, None),
            ("a = 3", 2, true, Some(("a = 3", 2, false))),
        ] {
            assert_eq!(book.register(&g, &sql(expression, version), 100), changed, "{expression} {version}");
            assert_eq!(of(&book), expected, "{expression} {version}");
        }
        assert!(!book.register(&g, &[sub("t", "TAG", "A", 9)], 100));
        assert!(!book.register(&g, &[sub("u", "xpath", "A", 9)], 100));
        assert_eq!(of(&book), Some(("a = 3", 2, true)), "the topic is not in the list any more");
    }

    #[test]
    fn the_dead_stay_for_a_day_and_overrule_nobody() {
        let (mut book, g) = (FilterBook::default(), Arc::<str>::from("g"));
        book.register(&g, &sql("a = 1", 5), 100);
        assert!(book.take_dirty() && !book.take_dirty());
        book.unregister("g", 200);
        assert!(book.take_dirty());
        book.unregister("g", 300);
        assert!(!book.take_dirty(), "dead already");
        assert!(!book.register(&g, &sql("a = 1", 5), 400), "alive again: nothing else differs");
        assert_eq!(of(&book), Some(("a = 1", 5, false)));
        assert!(book.take_dirty());
        book.unregister("g", 500);
        assert!(book.register(&g, &sql("a = 2", 4), 600), "a clock that was set back");
        assert_eq!(of(&book), Some(("a = 2", 4, false)));
        book.clean(600 + 2 * KEEP_DEAD_MS);
        assert!(of(&book).is_some(), "the living stay");
        book.unregister("g", 700);
        book.clean(700 + KEEP_DEAD_MS - 1);
        assert!(of(&book).is_some());
        book.take_dirty();
        book.clean(700 + KEEP_DEAD_MS);
        assert_eq!((of(&book), book.count), (None, 0));
        assert!(book.take_dirty());
    }

    #[test]
    fn filters_stand_beside_their_subscriptions() {
        let (mut book, g) = (FilterBook::default(), Arc::<str>::from("g"));
        let list = [sub("t", "SQL92", "a = 1", 5), sub("u", "SQL92", "a >", 5), sub("v", "TAG", "*", 5)];
        assert!(book.register(&g, &list, 100));
        let subscriptions = list.iter().map(|one| (one.topic.clone(), Arc::new(one.clone()))).collect();
        let mut consumers = GroupConsumers { model: MessageModel::Clustering, subscriptions };
        book.attach("g", &mut consumers);
        let found: Vec<_> = consumers.subscriptions.values().map(|one| one.filter.clone()).collect();
        let first = found[0].as_ref().unwrap();
        assert_eq!((first.expression.text(), first.version), ("a = 1", 5));
        assert_eq!(found[1..], [None, None]);
    }

    #[test]
    fn the_number_of_filters_is_bounded() {
        let mut book = FilterBook { count: MAX_FILTERS, ..FilterBook::default() };
        assert!(!book.register(&"g".into(), &sql("a = 1", 5), 1));
        assert_eq!((of(&book), book.count), (None, MAX_FILTERS));
    }

    #[test]
    fn the_file_has_javas_form_and_reads_back() {
        let (mut book, g) = (FilterBook::default(), Arc::<str>::from("g"));
        book.register(&g, &sql("a = 'it''s'", 5), 100_000);
        book.register(&"h".into(), &sql("b > 1", 6), 200_000);
        book.unregister("h", 300_000);
        let text = book.encode();
        let json = JsonRef::parse(&text).unwrap();
        let data = json.get("filterDataByTopic").get("t");
        assert_eq!(data.get("topic").string(), "t");
        let one = data.get("groupFilterData").get("g");
        assert_eq!((one.get("bornTime").as_i64(), one.get("deadTime").as_i64()), (Some(100_000), Some(0)));
        assert_eq!(one.get("bloomFilterData").get("bitPos").items().count(), 3);
        let again = FilterBook::decode(&text, 110_000).unwrap();
        assert_eq!(again.groups["g"]["t"].dead_ms, 100_000, "as if left half a minute ago, but not before it came");
        assert_eq!(again.groups["h"]["t"], book.groups["h"]["t"]);
        assert_eq!((again.count, again.dirty), (2, false));
        assert!(FilterBook::decode(b"{", 0).is_err());
        let odd = br#"{"filterDataByTopic":{"t":{"groupFilterData":{"g":{"topic":"t","consumerGroup":"g","expression":"a >","expressionType":"SQL92"},"h":null}}}}"#;
        assert_eq!(FilterBook::decode(odd, 0).unwrap().count, 0);
    }
}
