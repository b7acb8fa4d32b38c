//! Topics and groups of light queues: they need not be made.

use super::Owner;
use crate::snapshot::{Topic, light_name};
use std::sync::Arc;

impl Owner {
    /// A topic, as in [`crate::snapshot::Snapshot::topic_or_light`].
    pub(super) fn topic_or_light(&self, name: &str) -> Option<Arc<Topic>> {
        let light = || if self.options.light_queues { Topic::light(name.as_bytes()).map(Arc::new) } else { None };
        self.topics.get(name).cloned().or_else(light)
    }

    /// Whether there is such a group, as in [`crate::snapshot::Snapshot::group_or_light`].
    pub(super) fn has_group(&self, name: &str) -> bool {
        self.groups.get(name).is_some() || self.is_light(name)
    }

    /// Whether a name is that of a light queue.
    pub(super) fn is_light(&self, name: &str) -> bool {
        self.options.light_queues && light_name(name.as_bytes()).is_some()
    }
}
