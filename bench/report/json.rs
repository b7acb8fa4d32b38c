//! A result as one JSON object on one line, and back.

use crate::result::RunResult;

/// One line without its end. Figures that are no number (a rate of no time at all) become `null`.
///
/// # Errors
/// What the library says; no result of a run has led to one.
pub fn to_json(result: &RunResult) -> serde_json::Result<String> {
    serde_json::to_string(result)
}

/// Reads what [`to_json`] has written, also by an older version.
///
/// # Errors
/// What is not JSON, and a result without a field that has no default.
pub fn from_json(text: &str) -> serde_json::Result<RunResult> {
    serde_json::from_str(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixtures::run;
    use crate::result::Mode;

    #[test]
    fn there_and_back() {
        let mut result = run("a \"name\" </script> \u{2028} ü", 3);
        result.totals.errors = [(-1, 4), (14, 2)].into();
        result.options.mode = Mode::Open;
        result.options.target_rate = Some(1e6);
        result.samples[1].p50_ns = None;
        let text = to_json(&result).unwrap();
        assert!(!text.contains('\n'));
        assert!(from_json(&text).unwrap() == result, "{text}");
    }

    #[test]
    fn a_field_that_came_later_may_lack_and_an_unknown_one_is_no_error() {
        let result = run("x", 1);
        let mut value = serde_json::to_value(&result).unwrap();
        value["options"].as_object_mut().unwrap().remove("groups");
        value["samples"][0].as_object_mut().unwrap().remove("load_cpu_s");
        value["later"] = 1.into();
        let read = from_json(&value.to_string()).unwrap();
        assert_eq!(read.samples[0].load_cpu_s, None);
        assert!(from_json("{}").is_err());
    }
}
