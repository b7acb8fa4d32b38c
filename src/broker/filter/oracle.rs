//! A second evaluator, for tests only: random expressions with their meaning worked out from the reference's rules.
//!
//! Role: makes an expression as a tree, writes it as text, and interprets the tree by itself. It shares no code with the product:
//! numbers in texts come from a table that was filled by hand, truth values are spelled out.

use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;

/// A text and what Java reads in it.
pub(super) struct Text {
    pub(super) text: &'static str,
    int: Option<i32>,
    long: Option<i64>,
    double: Option<f64>,
    truth: bool,
}

const fn text(text: &'static str, int: Option<i32>, long: Option<i64>, double: Option<f64>) -> Text {
    Text { text, int, long, double, truth: false }
}

/// The texts of properties and constants.
pub(super) const TEXTS: &[Text] = &[
    text("abc", None, None, None),
    text("bc", None, None, None),
    text("it's", None, None, None),
    text("主", None, None, None),
    text("6", Some(6), Some(6), Some(6.0)),
    text("+6", Some(6), Some(6), Some(6.0)),
    text("007", Some(7), Some(7), Some(7.0)),
    text(" 6", None, None, Some(6.0)),
    text("-3", Some(-3), Some(-3), Some(-3.0)),
    text("0", Some(0), Some(0), Some(0.0)),
    text("-0.0", None, None, Some(-0.0)),
    text("6.5", None, None, Some(6.5)),
    text("6d", None, None, Some(6.0)),
    text("6L", None, None, None),
    text("1e1", None, None, Some(10.0)),
    text("2147483647", Some(i32::MAX), Some(2_147_483_647), Some(2_147_483_647.0)),
    text("2147483648", None, Some(2_147_483_648), Some(2_147_483_648.0)),
    text("9223372036854775807", None, Some(i64::MAX), Some(9_223_372_036_854_775_807.0)),
    text("9223372036854775808", None, None, Some(9_223_372_036_854_775_808.0)),
    text("NaN", None, None, Some(f64::NAN)),
    text("-Infinity", None, None, Some(f64::NEG_INFINITY)),
    Text { text: "true", int: None, long: None, double: None, truth: true },
    Text { text: "TrUe", int: None, long: None, double: None, truth: true },
    text("false", None, None, None),
];

/// Names of properties; the messages of a test have some of them.
pub(super) const NAMES: [&str; 5] = ["a", "A", "b_1", "$c", "TAGS"];

/// A message: for each name the index of its text.
pub(super) type Message = [Option<usize>; NAMES.len()];

/// An expression as a tree.
#[derive(Clone, Debug)]
pub(super) enum Tree {
    Property(usize),
    Text(usize),
    Int(i32),
    Long(i64),
    Double(f64, &'static str),
    Bool(bool),
    Null,
    Plus(Box<Tree>),
    Minus(Box<Tree>),
    Not(Box<Tree>),
    Two(&'static str, Box<Tree>, Box<Tree>),
    IsNull(bool, Box<Tree>),
    Between(bool, Box<Tree>, Box<Tree>, Box<Tree>),
    Search(bool, &'static str, Box<Tree>, &'static str),
    In(bool, usize, Vec<usize>),
}

#[derive(Clone, Debug)]
enum Found {
    Nothing,
    Truth(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(usize),
}

/// Evaluation broke off.
struct Broken;

impl Tree {
    /// Whether a message matches.
    pub(super) fn matches(&self, message: &Message) -> bool {
        matches!(self.truth(message), Ok(Some(true)))
    }

    /// As a truth value: `None` is unknown.
    fn truth(&self, message: &Message) -> Result<Option<bool>, Broken> {
        match self {
            Self::Property(at) => Ok(message[*at].map(|_| false)),
            Self::Plus(tree) => tree.truth(message),
            _ => match self.find(message)? {
                Found::Truth(truth) => Ok(Some(truth)),
                Found::Nothing => Ok(None),
                other => panic!("{other:?} is no truth value"),
            },
        }
    }

    fn find(&self, message: &Message) -> Result<Found, Broken> {
        let known = |truth: Option<bool>| truth.map_or(Found::Nothing, Found::Truth);
        Ok(match self {
            Self::Property(at) => message[*at].map_or(Found::Nothing, Found::Text),
            Self::Text(at) => Found::Text(*at),
            Self::Int(number) => Found::Int(*number),
            Self::Long(number) => Found::Long(*number),
            Self::Double(number, _) => Found::Double(*number),
            Self::Bool(truth) => Found::Truth(*truth),
            Self::Null => Found::Nothing,
            Self::Plus(tree) => tree.find(message)?,
            Self::Minus(tree) => match tree.find(message)? {
                Found::Int(number) => Found::Int(-number),
                Found::Long(number) => Found::Long(-number),
                Found::Double(number) => Found::Double(-number),
                _ => Found::Nothing,
            },
            Self::Not(tree) => known(tree.truth(message)?.map(|truth| !truth)),
            Self::Two("AND", left, right) => known(both(left.truth(message)?, || right.truth(message))?),
            Self::Two("OR", left, right) => known(either(left.truth(message)?, || right.truth(message))?),
            Self::Two(sign @ ("=" | "<>"), left, right) => {
                let same = same(&left.find(message)?, &right.find(message)?)?;
                known(if *sign == "=" { same } else { same.map(|same| !same) })
            }
            Self::Two(sign, left, right) => known(order(sign, left, right, message)?),
            Self::IsNull(not, tree) => Found::Truth(matches!(tree.find(message)?, Found::Nothing) != *not),
            Self::Between(false, value, low, high) => {
                known(both(order(">=", value, low, message)?, || order("<=", value, high, message))?)
            }
            Self::Between(true, value, low, high) => {
                known(either(order("<", value, low, message)?, || order(">", value, high, message))?)
            }
            Self::Search(_, _, _, "") => Found::Truth(false),
            Self::Search(not, how, tree, wanted) => Found::Truth(match tree.find(message)? {
                Found::Text(at) => {
                    let text = TEXTS[at].text;
                    let found = match *how {
                        "CONTAINS" => text.contains(wanted),
                        "STARTSWITH" => text.starts_with(wanted),
                        _ => text.ends_with(wanted),
                    };
                    found != *not
                }
                _ => false,
            }),
            Self::In(not, property, list) => known(message[*property].map(|at| list.contains(&at) != *not)),
        })
    }
}

fn both(left: Option<bool>, right: impl FnOnce() -> Result<Option<bool>, Broken>) -> Result<Option<bool>, Broken> {
    if left == Some(false) {
        return Ok(Some(false));
    }
    Ok(match (left, right()?) {
        (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    })
}

fn either(left: Option<bool>, right: impl FnOnce() -> Result<Option<bool>, Broken>) -> Result<Option<bool>, Broken> {
    if left == Some(true) {
        return Ok(Some(true));
    }
    Ok(match (left, right()?) {
        (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        _ => None,
    })
}

fn same(left: &Found, right: &Found) -> Result<Option<bool>, Broken> {
    use Found as F;
    Ok(match (left, right) {
        (F::Nothing, F::Nothing) => Some(true),
        (F::Nothing, _) => None,
        (_, F::Nothing) => Some(false),
        (F::Text(left), F::Text(right)) => Some(left == right),
        (F::Truth(left), F::Truth(right)) => Some(left == right),
        (F::Text(text), F::Truth(truth)) | (F::Truth(truth), F::Text(text)) => Some(TEXTS[*text].truth == *truth),
        (F::Truth(_), _) | (_, F::Truth(_)) => Some(false),
        _ => Some(signum(left, right)? == 0),
    })
}

/// -1, 0 or 1 of two values of which at most one is a text.
fn signum(left: &Found, right: &Found) -> Result<i32, Broken> {
    use Found as F;
    let whole = |value: &Found| match value {
        F::Int(number) => Some(i128::from(*number)),
        F::Long(number) => Some(i128::from(*number)),
        _ => None,
    };
    let number = |value: &Found| match value {
        F::Int(number) => f64::from(*number),
        F::Long(number) => *number as f64,
        F::Double(number) => *number,
        _ => panic!("no number"),
    };
    let read = |text: usize, like: &Found| {
        let text = &TEXTS[text];
        match like {
            F::Int(_) => text.int.map(F::Int),
            F::Long(_) => text.long.map(F::Long),
            _ => text.double.map(F::Double),
        }
        .ok_or(Broken)
    };
    let (left, right) = match (left, right) {
        (F::Text(text), other) => (read(*text, other)?, other.clone()),
        (other, F::Text(text)) => (other.clone(), read(*text, other)?),
        (left, right) => (left.clone(), right.clone()),
    };
    Ok(match (whole(&left), whole(&right)) {
        (Some(left), Some(right)) => (left - right).signum() as i32,
        _ => signum_of_doubles(number(&left), number(&right)),
    })
}

fn signum_of_doubles(left: f64, right: f64) -> i32 {
    match (left.is_nan(), right.is_nan()) {
        (true, true) => return 0,
        (true, false) => return 1,
        (false, true) => return -1,
        _ => {}
    }
    if left == 0.0 && right == 0.0 {
        return i32::from(right.is_sign_negative()) - i32::from(left.is_sign_negative());
    }
    i32::from(left > right) - i32::from(left < right)
}

fn order(sign: &str, left: &Tree, right: &Tree, message: &Message) -> Result<Option<bool>, Broken> {
    let left = left.find(message)?;
    if matches!(left, Found::Nothing) {
        return Ok(None);
    }
    let right = right.find(message)?;
    if matches!(right, Found::Nothing) {
        return Ok(None);
    }
    let signum = match (&left, &right) {
        (Found::Text(left), Found::Text(right)) => {
            let number = |text: usize| TEXTS[text].double.ok_or(Broken);
            signum_of_doubles(number(*left)?, number(*right)?)
        }
        _ => signum(&left, &right)?,
    };
    Ok(Some(match sign {
        ">" => signum > 0,
        ">=" => signum >= 0,
        "<" => signum < 0,
        "<=" => signum <= 0,
        other => panic!("{other}"),
    }))
}

/// Makes expressions and messages.
pub(super) struct Maker<'a>(pub(super) &'a mut StdRng);

impl Maker<'_> {
    fn below(&mut self, limit: usize) -> usize {
        self.0.random_range(0..limit)
    }

    fn coin(&mut self) -> bool {
        self.0.random_bool(0.5)
    }

    /// A message: its properties as indices and as a text, with broken pairs and doubles in between.
    pub(super) fn message(&mut self) -> (Message, Vec<u8>) {
        let mut message = [None; NAMES.len()];
        let mut text = b"UNIQ_KEY\x01x\x02".to_vec();
        for _ in 0..self.below(8) {
            let (name, value) = (self.below(NAMES.len()), self.below(TEXTS.len()));
            message[name] = Some(value);
            text.extend_from_slice(format!("{}\x01{}\x02", NAMES[name], TEXTS[value].text).as_bytes());
            if self.below(6) == 0 {
                text.extend_from_slice(b"b_1\x01\x02a\x02\x01x\x02");
            }
        }
        (message, text)
    }

    /// An expression that gives a truth value.
    pub(super) fn truth(&mut self, depth: u32) -> Tree {
        match if depth == 0 { self.below(6) } else { self.below(16) } {
            0 => Tree::Property(self.below(NAMES.len())),
            1 => Tree::Bool(self.coin()),
            2 => self.list(),
            3 | 4 => self.order(depth.min(1)),
            5 => self.search(depth.min(1)),
            6 | 7 => Tree::Not(Box::new(self.truth(depth - 1))),
            8 | 9 => Tree::Two("AND", Box::new(self.truth(depth - 1)), Box::new(self.truth(depth - 1))),
            10 | 11 => Tree::Two("OR", Box::new(self.truth(depth - 1)), Box::new(self.truth(depth - 1))),
            12 => Tree::IsNull(self.coin(), Box::new(self.any(depth - 1))),
            13 => self.between(depth),
            14 => Tree::Null,
            _ => self.equal(depth),
        }
    }

    fn any(&mut self, depth: u32) -> Tree {
        match self.below(4) {
            0 => self.truth(depth),
            1 => Tree::Text(self.below(TEXTS.len())),
            _ => self.ordered(depth),
        }
    }

    /// What may stand beside an order sign.
    fn ordered(&mut self, depth: u32) -> Tree {
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0..3 => Tree::Property(self.below(NAMES.len())),
            3 => Tree::Int([0, 5, 6, 7, i32::MAX][self.below(5)]),
            4 => Tree::Long([2_147_483_648, i64::MAX][self.below(2)]),
            5 => [
                Tree::Double(6.0, "6.0"),
                Tree::Double(6.5, "65E-1"),
                Tree::Double(0.5, ".5"),
                Tree::Double(3.0, "3."),
                Tree::Double(f64::MAX, "1.7976931348623157e+308"),
            ][self.below(5)]
            .clone(),
            6 => Tree::Plus(Box::new(self.ordered(depth - 1))),
            7 => Tree::Minus(Box::new(self.any(depth - 1))),
            _ => Tree::Minus(Box::new(self.ordered(depth - 1))),
        }
    }

    fn order(&mut self, depth: u32) -> Tree {
        let sign = [">", ">=", "<", "<="][self.below(4)];
        Tree::Two(sign, Box::new(self.ordered(depth)), Box::new(self.ordered(depth)))
    }

    fn between(&mut self, depth: u32) -> Tree {
        let (value, low, high) = (self.ordered(depth - 1), self.ordered(depth - 1), self.ordered(depth - 1));
        // Constants in the wrong order are refused.
        let constant = |tree: &Tree| match bare(tree) {
            Tree::Int(number) => Some(f64::from(*number)),
            Tree::Long(number) => Some(*number as f64),
            Tree::Double(number, _) => Some(*number),
            _ => None,
        };
        let wrong = matches!((constant(&low), constant(&high)), (Some(low), Some(high)) if low > high);
        let (low, high) = if wrong { (high, low) } else { (low, high) };
        Tree::Between(self.coin(), Box::new(value), Box::new(low), Box::new(high))
    }

    fn equal(&mut self, depth: u32) -> Tree {
        let sign = ["=", "<>"][self.below(2)];
        loop {
            let (left, right) = (self.any(depth - 1), self.any(depth - 1));
            let is_truth = matches!(left, Tree::Bool(_));
            let is_other = matches!(bare(&right), Tree::Text(_) | Tree::Int(_) | Tree::Long(_) | Tree::Double(..));
            let refused = matches!(left, Tree::Null) || matches!(right, Tree::Null) || (is_truth && is_other);
            if !refused {
                return Tree::Two(sign, Box::new(left), Box::new(right));
            }
        }
    }

    fn search(&mut self, depth: u32) -> Tree {
        let how = ["CONTAINS", "STARTSWITH", "ENDSWITH"][self.below(3)];
        let wanted = ["", "bc", "6", "'", "主", ".", "abcd"][self.below(7)];
        Tree::Search(self.coin(), how, Box::new(self.any(depth)), wanted)
    }

    fn list(&mut self) -> Tree {
        let list = (0..1 + self.below(7)).map(|_| self.below(TEXTS.len())).collect();
        Tree::In(self.coin(), self.below(NAMES.len()), list)
    }

    /// Writes an expression: brackets where the grammar needs them, and sometimes elsewhere; words in any case.
    pub(super) fn write(&mut self, tree: &Tree, least: u8, out: &mut String) {
        let level = level(tree);
        let brackets = level < least || self.below(12) == 0;
        if brackets {
            out.push('(');
            self.blank(out);
        }
        self.write_bare(tree, out);
        if brackets {
            self.blank(out);
            out.push(')');
        }
    }

    fn write_bare(&mut self, tree: &Tree, out: &mut String) {
        match tree {
            Tree::Property(at) => out.push_str(NAMES[*at]),
            Tree::Text(at) => quote(TEXTS[*at].text, out),
            Tree::Int(number) => {
                out.push_str(&format!("{number}{}", if *number > 0 && self.coin() { "L" } else { "" }))
            }
            Tree::Long(number) => out.push_str(&number.to_string()),
            Tree::Double(_, text) => out.push_str(text),
            Tree::Bool(truth) => self.word(if *truth { "TRUE" } else { "FALSE" }, out),
            Tree::Null => self.word("NULL", out),
            Tree::Plus(inner) | Tree::Minus(inner) | Tree::Not(inner) => {
                let sign = match tree {
                    Tree::Plus(_) => "+",
                    Tree::Minus(_) => "-",
                    _ => "NOT",
                };
                self.word(sign, out);
                out.push(' ');
                self.write(inner, 4, out);
            }
            Tree::Two(sign, left, right) => {
                let level = level(tree);
                self.write(left, level, out);
                self.spaced(sign, out);
                self.write(right, level + 1, out);
            }
            Tree::IsNull(not, inner) => {
                self.write(inner, 2, out);
                self.spaced(if *not { "IS NOT NULL" } else { "IS NULL" }, out);
            }
            Tree::Between(not, value, low, high) => {
                self.write(value, 3, out);
                self.spaced(if *not { "NOT BETWEEN" } else { "BETWEEN" }, out);
                self.write(low, 4, out);
                self.spaced("AND", out);
                self.write(high, 4, out);
            }
            Tree::Search(not, how, inner, wanted) => {
                self.write(inner, 3, out);
                self.spaced(if *not { "NOT" } else { "" }, out);
                self.spaced(how, out);
                quote(wanted, out);
            }
            Tree::In(not, property, list) => {
                out.push_str(NAMES[*property]);
                self.spaced(if *not { "NOT IN" } else { "IN" }, out);
                for (at, text) in list.iter().enumerate() {
                    out.push(if at == 0 { '(' } else { ',' });
                    self.blank(out);
                    quote(TEXTS[*text].text, out);
                }
                out.push(')');
            }
        }
    }

    fn spaced(&mut self, word: &str, out: &mut String) {
        out.push(' ');
        self.blank(out);
        self.word(word, out);
        out.push(' ');
    }

    fn word(&mut self, word: &str, out: &mut String) {
        out.push_str(&if self.coin() { word.to_owned() } else { word.to_lowercase() });
    }

    fn blank(&mut self, out: &mut String) {
        out.push_str(["", "", " ", "\t\n", "/* ' ( */", "-- ) \n"][self.below(6)]);
    }
}

/// Without the plus signs before it, which say nothing.
fn bare(tree: &Tree) -> &Tree {
    match tree {
        Tree::Plus(inner) => bare(inner),
        other => other,
    }
}

/// How tightly it binds: OR 0, AND 1, equality 2, comparison 3, sign 4, value 5.
fn level(tree: &Tree) -> u8 {
    let levels: BTreeMap<&str, u8> = [("OR", 0), ("AND", 1), ("=", 2), ("<>", 2)].into();
    match tree {
        Tree::Two(sign, ..) => levels.get(sign).copied().unwrap_or(3),
        Tree::IsNull(..) => 2,
        Tree::Between(..) | Tree::Search(..) | Tree::In(..) => 3,
        Tree::Plus(_) | Tree::Minus(_) | Tree::Not(_) => 4,
        _ => 5,
    }
}

fn quote(text: &str, out: &mut String) {
    out.push('\'');
    out.push_str(&text.replace('\'', "''"));
    out.push('\'');
}
