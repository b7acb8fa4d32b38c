//! Settings shown (26) and changed (25) while running: only keys of the closed list of live keys, checked, all or none.

use super::answer::{Asker, Outcome};
use super::flow::Held;
use super::version::DataVersion;
use super::{Contents, Owner, OwnerAction, OwnerFile, Refusal, Turn};
use remoting::{Command, ResponseCode};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Owner {
    /// 26.
    pub(super) fn show_settings(&self, asker: &Asker) -> Outcome {
        let mut text = String::new();
        for (key, value) in self.shown() {
            text.push_str(&format!("{key}={value}\n"));
        }
        let version = DataVersion { counter: self.settings_changes, ..DataVersion::default() };
        let version = String::from_utf8(version.to_json().to_vec()).expect("JSON is text");
        Outcome::Now(asker.ok().with_body(text.into_bytes()).with_field("version", version))
    }

    /// 25.
    pub(super) fn update_settings(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let text = std::str::from_utf8(&command.body)
            .map_err(|_| Refusal::new(ResponseCode::SystemError, "the body is no text"))?;
        let shown = self.shown();
        let mut settings = (*self.settings).clone();
        let mut changed = BTreeMap::new();
        for (key, value) in properties(text) {
            if shown.get(key).is_some_and(|current| *current == value) {
                continue;
            }
            settings.set(key, value).map_err(|e| Refusal::new(ResponseCode::NoPermission, e.to_string()))?;
            changed.insert(key.to_owned(), value.trim().to_owned());
        }
        if !changed.is_empty() {
            tracing::info!(?changed, peer = %asker.origin.peer, "settings were changed");
            self.apply_settings(turn, settings, &changed);
        }
        self.when_known(turn, Held::Reply(asker.clone(), asker.ok()));
        Ok(Outcome::Later)
    }

    fn apply_settings(
        &mut self,
        turn: &mut Turn<'_>,
        settings: crate::config::LiveSettings,
        changed: &BTreeMap<String, String>,
    ) {
        let permission_changed = settings.broker_permission != self.settings.broker_permission;
        self.settings = Arc::new(settings);
        self.settings_changes += 1;
        self.flow.publish();
        if permission_changed {
            // The name servers are told what the topics' permissions come to now.
            self.topics.touch(turn.now.wall_ms);
            self.flow.topics_changed(None);
        }
        if self.options.config_file.is_some() {
            let text: String = changed.iter().map(|(k, v)| format!("{k}={v}\n")).collect();
            let token = self.token();
            let contents = Contents::Bytes(text.into_bytes());
            turn.out.push(OwnerAction::Persist { token, file: OwnerFile::Settings, contents });
        }
    }

    fn shown(&self) -> BTreeMap<String, String> {
        let mut shown = self.options.shown.clone();
        let own = [
            ("brokerName", self.options.broker_name.clone()),
            ("brokerClusterName", self.options.cluster_name.clone()),
            ("brokerId", self.options.broker_id.to_string()),
            ("brokerIP1", self.options.address.ip().to_string()),
            ("listenPort", self.options.address.port().to_string()),
            ("namesrvAddr", self.options.name_servers.join(";")),
        ];
        for (key, value) in own {
            shown.entry(key.to_owned()).or_insert(value);
        }
        for key in crate::config::LIVE_KEYS {
            shown.extend(self.settings.get(key.name).map(|value| (key.name.to_owned(), value)));
        }
        shown
    }
}

/// The `key=value` lines of Java properties; comments and blank lines are left out.
pub(crate) fn properties(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let line = line.trim_start();
        if line.starts_with(['#', '!']) {
            return None;
        }
        let (key, value) = line.split_once(['=', ':'])?;
        Some((key.trim(), value.trim_start()))
    })
}

/// A settings file with these keys changed: their last lines are replaced, missing ones are added at the end.
pub(crate) fn merge_properties(file: &str, changes: &str) -> String {
    let mut left: BTreeMap<&str, &str> = properties(changes).collect();
    let mut lines = Vec::new();
    for line in file.lines().rev() {
        let key = properties(line).next().map(|(key, _)| key);
        match key.and_then(|k| left.remove_entry(k)) {
            Some((key, value)) => lines.push(format!("{key}={value}")),
            None => lines.push(line.to_owned()),
        }
    }
    lines.reverse();
    lines.extend(left.into_iter().map(|(key, value)| format!("{key}={value}")));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_replace_and_new_ones_are_added() {
        let file = "# mine\nbrokerName=a\nmaxMessageSize = 1\n\ntraceOn:true\n";
        let merged = merge_properties(file, "maxMessageSize=2\nlongPollingEnable=false\n");
        assert_eq!(merged, "# mine\nbrokerName=a\nmaxMessageSize=2\n\ntraceOn:true\nlongPollingEnable=false\n");
        assert_eq!(properties("a=b c=d\n !x=1\n=\n").collect::<Vec<_>>(), [("a", "b c=d"), ("", "")]);
    }
}
