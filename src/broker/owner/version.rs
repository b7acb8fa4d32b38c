//! Java's `DataVersion`: the version of a table, compared whole by name servers and slaves.

use remoting::Json;
use remoting::json::JsonRef;

/// A table's version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataVersion {
    /// Term of the controller; 0 without one.
    pub state_version: i64,
    /// When it changed last, ms since 1970.
    pub timestamp_ms: i64,
    /// How often it changed.
    pub counter: i64,
}

impl DataVersion {
    /// The table changed.
    pub fn next(&mut self, now_ms: i64) {
        self.timestamp_ms = now_ms;
        self.counter += 1;
    }

    /// As in files and bodies.
    pub fn to_json(self) -> Json {
        Json::bean([
            ("counter", self.counter.into()),
            ("stateVersion", self.state_version.into()),
            ("timestamp", self.timestamp_ms.into()),
        ])
    }

    /// The version in a file's contents; `None` without a file.
    pub fn of_file(bytes: Option<&[u8]>) -> Option<Self> {
        JsonRef::parse(bytes?).ok().map(|json| Self::from_json(json.get("dataVersion")))
    }

    /// From a file or body; missing numbers are 0.
    pub fn from_json(json: JsonRef<'_>) -> Self {
        let number = |name: &str| json.get(name).as_i64().unwrap_or(0);
        Self { state_version: number("stateVersion"), timestamp_ms: number("timestamp"), counter: number("counter") }
    }
}
