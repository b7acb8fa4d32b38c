//! Every key of `broker.conf`, declared once: Java's key, our name with its unit, a sentence, default, kind, and when a
//! change counts. Checks values, and prints the reference page (`ringmq --help-config`).
//!
//! Role: raw text to checked text. What a value means is `config`'s business, what it does the broker's and the store's.
//! Invariants: every default is legal; a key that cannot do here what it promises is named, never silently obeyed.

use std::fmt::Write as _;

use crate::settings_table::SETTINGS;

/// One key.
pub struct Setting {
    /// Java's key.
    pub key: &'static str,
    /// Our name, with its unit last.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Java's default, or ours where [`Setting::about`] says so. Empty: found at start.
    pub default: &'static str,
    /// Type and bounds.
    pub kind: Kind,
    /// When a change counts.
    pub when: When,
}

/// Type and bounds of a value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number from .. to ..
    Number(i64, i64),
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// Any text without control characters.
    Text,
    /// `host:port` items between semicolons, or nothing.
    Addresses,
    /// Hours of the day between semicolons.
    Hours,
    /// Delays as `1s 5s 2m 1h 1d` between blanks.
    Delays,
}

/// When a change of a setting counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At once, by request 25 (`mqadmin updateBrokerConfig`).
    Live,
    /// At the next start.
    Restart,
    /// Never: it has no meaning in this broker, for this reason. Any value is taken.
    NoEffect(&'static str),
    /// Not in this version, for this reason. Any value is taken and named at start.
    Later(&'static str),
    /// Not in this version, and promising what is not there would be dangerous: only the default is taken.
    DefaultOnly(&'static str),
}

/// Why a value is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} cannot be {value:?}: {wants}")]
pub struct BadValue {
    /// The key.
    pub key: &'static str,
    /// What was given.
    pub value: String,
    /// What would be right.
    pub wants: String,
}

/// The setting of a key.
#[must_use]
pub fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// The known key that is spelled most like this one, for the message about an unknown key.
#[must_use]
pub fn similar(key: &str) -> Option<&'static str> {
    let distance = |known: &&Setting| edit_distance(&key.to_ascii_lowercase(), &known.key.to_ascii_lowercase());
    let best = SETTINGS.iter().min_by_key(distance)?;
    (distance(&best) <= 1 + key.len() / 4).then_some(best.key)
}

impl Setting {
    /// The value in its usual form.
    ///
    /// # Errors
    /// Not of the key's kind, out of bounds, or asking for what this broker does not have.
    pub fn check(&self, value: &str) -> Result<String, BadValue> {
        let value = value.trim();
        let bad = |wants: String| BadValue { key: self.key, value: value.to_owned(), wants };
        let checked = self.kind.check(value).map_err(&bad)?;
        match self.when {
            When::DefaultOnly(why) if checked != self.default && !(checked.is_empty() && self.default.is_empty()) => {
                Err(bad(format!("only {:?} is supported, {why}", self.default)))
            }
            _ => Ok(checked),
        }
    }
}

impl Kind {
    fn check(self, value: &str) -> Result<String, String> {
        match self {
            Self::Flag => match value.to_ascii_lowercase().as_str() {
                flag @ ("true" | "false") => Ok(flag.to_owned()),
                _ => Err("true or false".into()),
            },
            Self::Number(min, max) => match value.parse::<i64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(number.to_string()),
                _ => Err(format!("a number from {min} to {max}")),
            },
            Self::OneOf(choices) => match choices.iter().find(|choice| choice.eq_ignore_ascii_case(value)) {
                Some(choice) => Ok((*choice).to_owned()),
                None => Err(format!("one of {}", choices.join(", "))),
            },
            Self::Text => match value.chars().any(char::is_control) {
                false => Ok(value.to_owned()),
                true => Err("a text without control characters".into()),
            },
            Self::Addresses => match value.split(';').filter(|item| !item.trim().is_empty()).all(is_host_port) {
                true => Ok(value.to_owned()),
                false => Err("host:port items between semicolons".into()),
            },
            Self::Hours => {
                let hour = |item: &str| item.trim().parse::<u8>().is_ok_and(|hour| hour < 24);
                match value.split(';').filter(|item| !item.trim().is_empty()).all(hour) && !value.is_empty() {
                    true => Ok(value.to_owned()),
                    false => Err("hours from 00 to 23 between semicolons".into()),
                }
            }
            Self::Delays => match value.split_whitespace().all(is_delay) && !value.is_empty() {
                true => Ok(value.split_whitespace().collect::<Vec<_>>().join(" ")),
                false => Err("delays such as 1s 5m 2h 1d between blanks".into()),
            },
        }
    }

    fn describe(self) -> String {
        match self {
            Self::Flag => "true, false".into(),
            Self::Number(min, max) => format!("{min} to {max}"),
            Self::OneOf(choices) => choices.join(", "),
            Self::Text => "text".into(),
            Self::Addresses => "host:port;host:port".into(),
            Self::Hours => "hours, 04;16".into(),
            Self::Delays => "delays, 1s 5m 2h".into(),
        }
    }
}

/// The reference page of all keys, in Markdown.
#[must_use]
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Settings of the broker\n\n\
         Keys of `broker.conf` (Java `.properties`, UTF-8) and of `--set KEY=VALUE`. *live*: `mqadmin updateBrokerConfig` \
         changes it while the broker runs.\n\n\
         | key | name | values | default | change | what it does |\n|---|---|---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let change = match setting.when {
            When::Live => "live".to_owned(),
            When::Restart => "restart".to_owned(),
            When::NoEffect(why) => format!("no effect: {why}"),
            When::Later(why) => format!("not yet: {why}"),
            When::DefaultOnly(why) => format!("fixed: {why}"),
        };
        let default = if setting.default.is_empty() { "–".to_owned() } else { format!("`{}`", setting.default) };
        let row = (setting.key, setting.name, setting.kind.describe(), default, change, setting.about);
        let _ = writeln!(page, "| `{}` | {} | {} | {} | {} | {} |", row.0, row.1, row.2, row.3, row.4, row.5);
    }
    page
}

/// Whether a text is `host:port` (an IPv6 host in brackets).
#[must_use]
pub fn is_host_port(text: &str) -> bool {
    text.trim().rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let host_is_legal = match bare {
            Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(legal),
        };
        host_is_legal && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

fn is_delay(text: &str) -> bool {
    text.strip_suffix(['s', 'm', 'h', 'd']).is_some_and(|number| number.parse::<u32>().is_ok_and(|n| n > 0))
}

fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let next = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_legal_and_every_key_comes_once() {
        assert!(SETTINGS.is_sorted_by(|a, b| a.key < b.key), "sorted by key, each once");
        for setting in SETTINGS {
            if !setting.default.is_empty() {
                assert_eq!(setting.check(setting.default).as_deref(), Ok(setting.default), "{}", setting.key);
            }
            assert!(setting.about.ends_with('.') && !setting.name.is_empty(), "{}", setting.key);
        }
    }

    #[test]
    fn live_keys_are_those_that_the_broker_changes() {
        for key in broker::config::LIVE_KEYS {
            let setting = find(key.name).unwrap_or_else(|| panic!("{} is not in the table", key.name));
            assert!(matches!(setting.when, When::Live | When::Later(_)), "{}", key.name);
            let shown = broker::config::LiveSettings::default().get(key.name);
            assert_eq!(shown.as_deref(), Some(setting.default), "{}", key.name);
        }
        for setting in SETTINGS.iter().filter(|setting| setting.when == When::Live) {
            assert!(broker::config::LIVE_KEYS.iter().any(|key| key.name == setting.key), "{}", setting.key);
        }
    }

    #[test]
    fn values_are_checked() {
        let check = |key: &str, value: &str| find(key).unwrap().check(value);
        assert_eq!(check("flushDiskType", "sync_flush").as_deref(), Ok("SYNC_FLUSH"));
        assert_eq!(check("autoCreateTopicEnable", " TRUE ").as_deref(), Ok("true"));
        assert_eq!(check("messageDelayLevel", "1s  5m 2h").as_deref(), Ok("1s 5m 2h"));
        for (key, value) in [
            ("brokerRole", "SLAVE"),
            ("transientStorePoolEnable", "true"),
            ("enableControllerMode", "true"),
            ("storeType", "defaultRocksDB"),
            ("authenticationEnabled", "true"),
            ("maxMessageSize", "-1"),
            ("maxMessageSize", "4m"),
            ("flushDiskType", "FLUSH"),
            ("namesrvAddr", "localhost"),
            ("namesrvAddr", "a:1;b:x"),
            ("deleteWhen", "24"),
            ("messageDelayLevel", "1s 5x"),
            ("brokerName", "a\nb"),
        ] {
            assert!(check(key, value).is_err(), "{key}={value}");
        }
        assert_eq!(check("namesrvAddr", "a:1;[::1]:9876;").as_deref(), Ok("a:1;[::1]:9876;"));
    }

    #[test]
    fn unknown_keys_have_suggestions() {
        assert_eq!(similar("flushDisktype"), Some("flushDiskType"));
        assert_eq!(similar("mapedFileSizeCommitLog"), Some("mappedFileSizeCommitLog"));
        assert_eq!(similar("qqqqqqqqqqqqqqqqqqq"), None);
    }

    #[test]
    fn the_reference_page_names_every_key() {
        let page = reference_page();
        assert!(SETTINGS.iter().all(|setting| page.contains(&format!("| `{}` |", setting.key))));
    }
}
