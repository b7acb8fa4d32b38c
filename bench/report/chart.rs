//! One line chart as inline SVG.
//!
//! Role: series of points to a drawing with axes, ticks and a legend. Invariants: points that an axis cannot show (not
//! finite, not positive on a logarithmic one) are left out; a long series is thinned so that its peaks and dips stay; names are escaped. It
//! knows no result.

use std::fmt::Write;

/// Points of a line that are drawn at most.
const MOST_POINTS: usize = 800;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;

/// What a line says beside its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    Solid,
    Dashed,
    Dotted,
}

/// A series.
#[derive(Debug, Clone)]
pub struct Line {
    /// In the legend and when the pointer rests on it.
    pub name: String,
    /// Number of its colour; the page has [`COLOURS`] and begins again behind them.
    pub colour: usize,
    pub stroke: Stroke,
    /// In the order of x.
    pub points: Vec<(f64, f64)>,
}

/// How many colours the page has.
pub const COLOURS: usize = 6;

/// How an axis places values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly from 0.
    Linear,
    /// By powers of ten.
    Log,
}

/// An axis.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    pub label: &'static str,
    pub scale: Scale,
    /// Writes a tick.
    pub tick: fn(f64) -> String,
}

/// A chart.
#[derive(Debug, Clone)]
pub struct Chart {
    pub title: &'static str,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

/// Text that can stand between tags and in attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

impl Chart {
    /// The drawing; a chart without any point says so.
    pub fn svg(&self) -> String {
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\"><text class=\"title\" x=\"{LEFT}\" y=\"18\">{0}</text>",
            escape(self.title)
        );
        let lines: Vec<(&Line, Vec<(f64, f64)>)> = self.lines.iter().map(|l| (l, self.shown(l))).collect();
        let all = || lines.iter().flat_map(|(_, points)| points.iter());
        if all().next().is_none() {
            let _ = write!(svg, "<text x=\"{LEFT}\" y=\"{}\">nothing measured</text></svg>", HEIGHT / 2.0);
            return svg;
        }
        let x = Range::of(self.x.scale, all().map(|p| p.0));
        let y = Range::of(self.y.scale, all().map(|p| p.1));
        self.axes(&mut svg, &x, &y);
        for (line, points) in &lines {
            draw(&mut svg, line, points, &x, &y);
        }
        svg.push_str("</svg>");
        svg
    }

    fn shown(&self, line: &Line) -> Vec<(f64, f64)> {
        let visible = |scale: Scale, v: f64| v.is_finite() && (scale == Scale::Linear || v > 0.0);
        let visible = |p: &&(f64, f64)| visible(self.x.scale, p.0) && visible(self.y.scale, p.1);
        thin(line.points.iter().filter(visible).copied().collect())
    }

    fn axes(&self, svg: &mut String, x: &Range, y: &Range) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in y.ticks(5) {
            let at = y_at(y, tick);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/><text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                escape(&(self.y.tick)(tick))
            );
        }
        for tick in x.ticks(8) {
            let at = x_at(x, tick);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom}\"/><text class=\"x\" x=\"{at:.1}\" y=\"{}\">{}</text>",
                bottom + 15.0,
                escape(&(self.x.tick)(tick))
            );
        }
        let _ = write!(
            svg,
            "<text class=\"x\" x=\"{}\" y=\"{}\">{}</text><text class=\"unit\" x=\"{right}\" y=\"18\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 8.0,
            escape(self.x.label),
            escape(self.y.label)
        );
    }
}

fn draw(svg: &mut String, line: &Line, points: &[(f64, f64)], x: &Range, y: &Range) {
    let dash = match line.stroke {
        Stroke::Solid => "",
        Stroke::Dashed => " dashed",
        Stroke::Dotted => " dotted",
    };
    let class = format!("c{}{dash}", line.colour % COLOURS);
    let name = escape(&line.name);
    // A line of one point has no length.
    if let [(px, py)] = points {
        let (cx, cy) = (x_at(x, *px), y_at(y, *py));
        let _ = write!(
            svg,
            "<circle class=\"dot {class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\"><title>{name}</title></circle>"
        );
    } else if !points.is_empty() {
        let _ = write!(svg, "<polyline class=\"{class}\" points=\"");
        for (px, py) in points {
            let _ = write!(svg, "{:.1},{:.1} ", x_at(x, *px), y_at(y, *py));
        }
        let _ = write!(svg, "\"><title>{name}</title></polyline>");
    }
}

fn x_at(range: &Range, value: f64) -> f64 {
    LEFT + range.part(value) * (WIDTH - LEFT - RIGHT)
}

fn y_at(range: &Range, value: f64) -> f64 {
    HEIGHT - BOTTOM - range.part(value) * (HEIGHT - TOP - BOTTOM)
}

/// Of each part of a long series its lowest and its highest point, in their order.
fn thin(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= MOST_POINTS {
        return points;
    }
    let part = points.len().div_ceil(MOST_POINTS / 2);
    let mut kept = Vec::with_capacity(MOST_POINTS);
    for part in points.chunks(part) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let ends = part.iter().min_by(by_value).zip(part.iter().max_by(by_value));
        let Some((&low, &high)) = ends else { continue };
        if low.0 == high.0 {
            kept.push(low);
        } else {
            kept.extend(if low.0 < high.0 { [low, high] } else { [high, low] });
        }
    }
    kept
}

/// What an axis shows: from and to, in values (`Linear`) or in powers of ten (`Log`).
struct Range {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Range {
    fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Range {
        let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        match scale {
            Scale::Linear => {
                let high = if most > 0.0 { most } else { 1.0 };
                let step = step_of(high, 5);
                Range { scale, low: 0.0, high: (high / step).ceil() * step }
            }
            Scale::Log => {
                let low = least.log10().floor();
                Range { scale, low, high: most.log10().ceil().max(low + 1.0) }
            }
        }
    }

    /// Where a value lies, from 0 to 1.
    fn part(&self, value: f64) -> f64 {
        let value = if self.scale == Scale::Log { value.log10() } else { value };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    fn ticks(&self, wanted: usize) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step_of(self.high, wanted);
                (0..=wanted * 3).map(|n| n as f64 * step).take_while(|v| *v <= self.high * 1.000_001).collect()
            }
            Scale::Log => {
                let (low, high) = (self.low as i32, self.high as i32);
                let every = ((high - low) / 8 + 1) as usize;
                (low..=high).step_by(every).map(|power| 10f64.powi(power)).collect()
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, so that about as many steps as wanted reach a value above 0.
fn step_of(high: f64, wanted: usize) -> f64 {
    let rough = high / wanted as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough * 0.999_999);
    step.unwrap_or(rough)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: &[(f64, f64)]) -> Chart {
        let axis = |scale| Axis { label: "s", scale, tick: |v| v.to_string() };
        let line = Line { name: "<b>&\"'".into(), colour: 7, stroke: Stroke::Dashed, points: points.to_vec() };
        Chart { title: "t", x: axis(Scale::Linear), y: axis(scale), lines: vec![line] }
    }

    #[test]
    fn names_are_escaped() {
        let svg = chart(Scale::Linear, &[(0.0, 1.0), (1.0, 2.0)]).svg();
        assert!(svg.contains("<title>&lt;b&gt;&amp;&quot;&#39;</title>") && !svg.contains("<b>"));
        assert!(svg.contains("class=\"c1 dashed\""), "colours begin again");
    }

    #[test]
    fn nothing_one_point_and_many() {
        assert!(chart(Scale::Log, &[]).svg().contains("nothing measured"));
        assert!(chart(Scale::Log, &[(0.0, 0.0), (1.0, f64::NAN)]).svg().contains("nothing measured"));
        assert!(chart(Scale::Log, &[(3.0, 7.0)]).svg().contains("<circle"));
        assert!(chart(Scale::Linear, &[(0.0, 0.0)]).svg().contains("<circle"));
        let many: Vec<(f64, f64)> = (0..100_000).map(|n| (f64::from(n), if n == 77_777 { 1e9 } else { 1.0 })).collect();
        let svg = chart(Scale::Linear, &many).svg();
        assert!(svg.len() < 40_000 && !svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.contains(&format!(",{TOP:.1} ")), "the peak is kept");
    }

    #[test]
    fn huge_values_stay_inside() {
        for scale in [Scale::Linear, Scale::Log] {
            let svg = chart(scale, &[(0.0, 1.0), (1.0, 1e300), (2.0, f64::MAX), (f64::INFINITY, 1.0)]).svg();
            assert!(!svg.contains("NaN") && !svg.contains(",-"), "{svg}");
        }
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(step_of(10.0, 5), 2.0);
        assert_eq!(step_of(575_000.0, 5), 200_000.0);
        assert_eq!(step_of(0.97, 5), 0.2);
        let ticks = Range::of(Scale::Linear, [0.0, 575_000.0].into_iter()).ticks(5);
        assert_eq!(ticks, [0.0, 200_000.0, 400_000.0, 600_000.0]);
        let ticks = Range::of(Scale::Log, [700.0, 90_000.0].into_iter()).ticks(5);
        assert_eq!(ticks, [100.0, 1_000.0, 10_000.0, 100_000.0]);
    }
}
