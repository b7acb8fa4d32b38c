//! Which cores hold pops that wait for messages of a topic.
//!
//! Role: pure. Invariants: a watch is told once and is gone then; a message that becomes visible after the watch was set always
//! tells it. Bounded by topics times cores. The path of a message asks [`Watches::is_empty`] and nothing else while nobody waits.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use reactor::CoreId;
use smallvec::SmallVec;
use std::sync::Arc;

/// Whom to tell of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The core that holds pops.
    pub core: CoreId,
    /// Their topic.
    pub topic: Arc<str>,
    /// Their group; `None`: any that holds there.
    pub group: Option<Arc<str>>,
}

/// The watches of a shard, by the topic of the message that they wait for.
#[derive(Debug, Default)]
pub struct Watches {
    topics: HashMap<Box<str>, SmallVec<[Watch; 2]>, RandomState>,
    told: Vec<Watch>,
}

impl Watches {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Sets a watch for messages of `topic` (that of the watch, or a retry topic).
    pub fn set(&mut self, topic: &str, watch: Watch) {
        let list = match self.topics.get_mut(topic) {
            Some(list) => list,
            None => self.topics.entry(topic.into()).or_default(),
        };
        if !list.contains(&watch) {
            list.push(watch);
        }
    }

    /// A message of this topic became visible, or can be popped now.
    pub fn arrived(&mut self, topic: &[u8]) {
        if let Ok(topic) = std::str::from_utf8(topic)
            && let Some(list) = self.topics.remove(topic)
        {
            self.told.extend(list);
        }
    }

    /// Tells one at once.
    pub fn tell(&mut self, watch: Watch) {
        self.told.push(watch);
    }

    /// Those that are to be told since the last call.
    pub fn take_told(&mut self) -> Vec<Watch> {
        std::mem::take(&mut self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_told_once() {
        let mut watches = Watches::default();
        let watch =
            |core, group: Option<&str>| Watch { core: CoreId(core), topic: "t".into(), group: group.map(Into::into) };
        watches.set("t", watch(0, None));
        watches.set("t", watch(0, None));
        watches.set("t", watch(1, None));
        watches.set("%RETRY%g_t", watch(1, Some("g")));
        watches.arrived(b"other");
        watches.arrived(&[0xFF]);
        assert_eq!(watches.take_told(), []);
        watches.arrived(b"t");
        watches.arrived(b"t");
        assert_eq!(watches.take_told(), [watch(0, None), watch(1, None)]);
        watches.arrived(b"%RETRY%g_t");
        assert_eq!(watches.take_told(), [watch(1, Some("g"))]);
        assert!(watches.is_empty() && watches.take_told().is_empty());
    }
}
