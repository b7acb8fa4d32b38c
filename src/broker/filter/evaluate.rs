//! The value of an expression for one message.
//!
//! Role: the tree and its evaluation with three values. Invariants: nothing is allocated; recursion is as deep as the tree, which
//! the parser bounds; operands are evaluated in the order of the reference, because what cannot be compared ends the evaluation.

use super::number;
use std::cmp::Ordering;

/// A constant of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Constant {
    Null,
    Bool(bool),
    /// A whole number of 32 bits.
    Int(i32),
    /// A whole number that needs 64.
    Long(i64),
    Double(f64),
    Text(Box<[u8]>),
}

/// Order comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Greater,
    AtLeast,
    Less,
    AtMost,
}

/// Where a text is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Anywhere,
    Start,
    End,
}

/// A part of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Constant(Constant),
    /// Index of a name.
    Property(u16),
    /// A property in the place of a truth value.
    Cast(u16),
    Negate(Box<Node>),
    Not(Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
    Equal(Box<[Node; 2]>),
    Compare(Order, Box<[Node; 2]>),
    /// Value, low, high; with `true`: outside.
    Between(bool, Box<[Node; 3]>),
    IsNull(Box<Node>),
    Search(Box<Search>),
    In(Box<In>),
}

/// CONTAINS and its kin.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Search {
    pub(super) place: Place,
    pub(super) not: bool,
    pub(super) operand: Node,
    pub(super) text: Box<[u8]>,
}

/// IN.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct In {
    pub(super) not: bool,
    /// Index of a name.
    pub(super) property: u16,
    /// Sorted.
    pub(super) texts: Vec<Box<[u8]>>,
}

impl Node {
    /// Whether it gives a truth value, as the reference's grammar sees it.
    pub(super) fn is_boolean(&self) -> bool {
        !matches!(
            self,
            Self::Property(_)
                | Self::Negate(_)
                | Self::Constant(Constant::Int(_) | Constant::Long(_) | Constant::Double(_) | Constant::Text(_))
        )
    }

    /// Bytes on the heap, for the fuzz target.
    pub(super) fn heap_bytes(&self) -> usize {
        let below = |nodes: &[Self]| nodes.iter().map(|node| size_of::<Self>() + node.heap_bytes()).sum();
        match self {
            Self::Constant(Constant::Text(text)) => text.len(),
            Self::Constant(_) | Self::Property(_) | Self::Cast(_) => 0,
            Self::Negate(node) | Self::Not(node) | Self::IsNull(node) => below(std::slice::from_ref(node)),
            Self::And(nodes) | Self::Or(nodes) => below(nodes) + (nodes.capacity() - nodes.len()) * size_of::<Self>(),
            Self::Equal(nodes) | Self::Compare(_, nodes) => below(&nodes[..]),
            Self::Between(_, nodes) => below(&nodes[..]),
            Self::Search(search) => size_of::<Search>() + search.operand.heap_bytes() + search.text.len(),
            Self::In(list) => {
                let texts: usize = list.texts.iter().map(|text| text.len()).sum();
                size_of::<In>() + texts + list.texts.capacity() * size_of::<Box<[u8]>>()
            }
        }
    }
}

/// A value while evaluating.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    /// Missing or unknown.
    Null,
    Bool(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(&'a [u8]),
}

/// Two values that the reference cannot compare.
#[derive(Clone, Copy, Debug)]
struct Incomparable;

type Evaluated<'a> = Result<Value<'a>, Incomparable>;

/// Whether the expression is true of a message; `values` by the index of their names.
pub(super) fn is_true(root: &Node, values: &[Option<&[u8]>]) -> bool {
    matches!(value(root, values), Ok(Value::Bool(true)))
}

fn value<'a>(node: &'a Node, values: &[Option<&'a [u8]>]) -> Evaluated<'a> {
    let property = |at: u16| values.get(usize::from(at)).copied().flatten();
    Ok(match node {
        Node::Constant(constant) => constant.value(),
        Node::Property(at) => property(*at).map_or(Value::Null, Value::Text),
        // A property is a text, and a text is not true.
        Node::Cast(at) => property(*at).map_or(Value::Null, |_| Value::Bool(false)),
        Node::Negate(operand) => match value(operand, values)? {
            Value::Int(number) => Value::Int(number.wrapping_neg()),
            Value::Long(number) => Value::Long(number.wrapping_neg()),
            Value::Double(number) => Value::Double(-number),
            Value::Null | Value::Bool(_) | Value::Text(_) => Value::Null,
        },
        Node::Not(operand) => match value(operand, values)? {
            Value::Bool(truth) => Value::Bool(!truth),
            _ => Value::Null,
        },
        Node::And(operands) => all_until(operands, values, false)?,
        Node::Or(operands) => all_until(operands, values, true)?,
        Node::Equal(sides) => {
            let [left, right] = &**sides;
            equal(value(left, values)?, value(right, values)?)?
        }
        Node::Compare(order, sides) => {
            let [left, right] = &**sides;
            ordered(value(left, values)?, *order, right, values)?
        }
        Node::Between(outside, operands) => between(*outside, operands, values)?,
        Node::IsNull(operand) => Value::Bool(matches!(value(operand, values)?, Value::Null)),
        // No text holds the empty one, with NOT as without, and nothing else is asked.
        Node::Search(search) if search.text.is_empty() => Value::Bool(false),
        Node::Search(search) => Value::Bool(search.finds(value(&search.operand, values)?)),
        Node::In(list) => match property(list.property) {
            Some(text) => Value::Bool(list.texts.binary_search_by(|one| (**one).cmp(text)).is_ok() != list.not),
            None => Value::Null,
        },
    })
}

/// AND (`decisive` false) or OR (true) over all operands: ends at the first decisive one.
fn all_until<'a>(operands: &'a [Node], values: &[Option<&'a [u8]>], decisive: bool) -> Evaluated<'a> {
    let mut result = Value::Bool(!decisive);
    for operand in operands {
        match value(operand, values)? {
            Value::Bool(truth) if truth == decisive => return Ok(Value::Bool(decisive)),
            Value::Bool(_) => {}
            _ => result = Value::Null,
        }
    }
    Ok(result)
}

fn equal<'a>(left: Value<'_>, right: Value<'_>) -> Evaluated<'a> {
    Ok(match (left, right) {
        (Value::Null, Value::Null) => Value::Bool(true),
        (Value::Null, _) => Value::Null,
        (_, Value::Null) => Value::Bool(false),
        _ => Value::Bool(compare(left, right)? == Some(Ordering::Equal)),
    })
}

/// An order comparison; the right side is not looked at when the left one is missing.
fn ordered<'a>(left: Value<'a>, order: Order, right: &'a Node, values: &[Option<&'a [u8]>]) -> Evaluated<'a> {
    if matches!(left, Value::Null) {
        return Ok(Value::Null);
    }
    let right = value(right, values)?;
    let found = match (left, right) {
        (_, Value::Null) => return Ok(Value::Null),
        // Texts have no order; numbers in them do.
        (Value::Text(left), Value::Text(right)) => {
            let number = |text| number::double(text).ok_or(Incomparable);
            Some(compare_doubles(number(left)?, number(right)?))
        }
        _ => compare(left, right)?,
    };
    // Values of kinds that do not go together count as "less", whichever stands first.
    let found = found.unwrap_or(Ordering::Less);
    Ok(Value::Bool(match order {
        Order::Greater => found.is_gt(),
        Order::AtLeast => found.is_ge(),
        Order::Less => found.is_lt(),
        Order::AtMost => found.is_le(),
    }))
}

/// `low <= value AND value <= high`, or outside `value < low OR value > high`; the value is worked out once.
fn between<'a>(outside: bool, operands: &'a [Node; 3], values: &[Option<&'a [u8]>]) -> Evaluated<'a> {
    let [operand, low, high] = operands;
    let (at_low, at_high) = if outside { (Order::Less, Order::Greater) } else { (Order::AtLeast, Order::AtMost) };
    let operand = value(operand, values)?;
    let first = ordered(operand, at_low, low, values)?;
    if matches!(first, Value::Bool(truth) if truth == outside) {
        return Ok(first);
    }
    let second = ordered(operand, at_high, high, values)?;
    match (first, second) {
        (_, Value::Bool(truth)) if truth == outside => Ok(second),
        (Value::Bool(_), Value::Bool(_)) => Ok(Value::Bool(!outside)),
        _ => Ok(Value::Null),
    }
}

/// Compares by the kind of the numbers; `None`: of kinds that do not go together.
fn compare(left: Value<'_>, right: Value<'_>) -> Result<Option<Ordering>, Incomparable> {
    use Value as V;
    let found = match (left, right) {
        (V::Bool(left), V::Bool(right)) => left.cmp(&right),
        (V::Text(left), V::Text(right)) => left.cmp(right),
        (V::Int(left), V::Int(right)) => left.cmp(&right),
        (V::Int(left), V::Long(right)) => i64::from(left).cmp(&right),
        (V::Long(left), V::Int(right)) => left.cmp(&i64::from(right)),
        (V::Long(left), V::Long(right)) => left.cmp(&right),
        (V::Double(left), V::Double(right)) => compare_doubles(left, right),
        (V::Int(left), V::Double(right)) => compare_doubles(f64::from(left), right),
        (V::Double(left), V::Int(right)) => compare_doubles(left, f64::from(right)),
        (V::Long(left), V::Double(right)) => compare_doubles(left as f64, right),
        (V::Double(left), V::Long(right)) => compare_doubles(left, right as f64),
        (V::Text(text), number) => return compare_text(text, number),
        (number, V::Text(text)) => return Ok(compare_text(text, number)?.map(Ordering::reverse)),
        (V::Null | V::Bool(_), _) | (_, V::Null | V::Bool(_)) => return Ok(None),
    };
    Ok(Some(found))
}

/// A text on the left of a value that is no text: read as its kind.
fn compare_text(text: &[u8], right: Value<'_>) -> Result<Option<Ordering>, Incomparable> {
    Ok(Some(match right {
        Value::Bool(right) => text.eq_ignore_ascii_case(b"true").cmp(&right),
        Value::Int(right) => number::whole::<i32>(text).ok_or(Incomparable)?.cmp(&right),
        Value::Long(right) => number::whole::<i64>(text).ok_or(Incomparable)?.cmp(&right),
        Value::Double(right) => compare_doubles(number::double(text).ok_or(Incomparable)?, right),
        Value::Null | Value::Text(_) => return Ok(None),
    }))
}

/// Java's order of doubles: -0 below 0, and one NaN above all (ours is positive).
fn compare_doubles(left: f64, right: f64) -> Ordering {
    left.total_cmp(&right)
}

impl Constant {
    /// The order of two numbers; `None` when one is none.
    pub(super) fn compare_numbers(&self, other: &Self) -> Option<Ordering> {
        let is_number = |one: &Self| matches!(one, Self::Int(_) | Self::Long(_) | Self::Double(_));
        if !is_number(self) || !is_number(other) {
            return None;
        }
        compare(self.value(), other.value()).ok().flatten()
    }

    fn value(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Bool(truth) => Value::Bool(*truth),
            Self::Int(number) => Value::Int(*number),
            Self::Long(number) => Value::Long(*number),
            Self::Double(number) => Value::Double(*number),
            Self::Text(text) => Value::Text(text),
        }
    }
}

impl Search {
    /// Nothing but a text holds a text or does not.
    fn finds(&self, operand: Value<'_>) -> bool {
        let Value::Text(text) = operand else { return false };
        let found = match self.place {
            Place::Anywhere => memchr::memmem::find(text, &self.text).is_some(),
            Place::Start => text.starts_with(&self.text),
            Place::End => text.ends_with(&self.text),
        };
        found != self.not
    }
}
