//! The few SVG elements that the report draws with.
//!
//! Invariant: every text and attribute that comes from outside is escaped; numbers are written
//! with one decimal, so that the same run gives the same picture.

use std::fmt::Write as _;

/// An SVG picture that is being drawn.
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Self {
        Self {
            body: String::new(),
            width,
            height,
        }
    }

    pub fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str) {
        self.add(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" class="{class}"/>"#
        ));
    }

    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.add(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#
        ));
    }

    pub fn text(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        let text = escape(text);
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#
        ));
    }

    /// A disc with a sign in it and a word to read under the pointer.
    pub fn badge(&mut self, (x, y): (f64, f64), class: &str, sign: &str, title: &str) {
        let (sign, title, below) = (escape(sign), escape(title), y + 3.4);
        self.add(format_args!(
            "<g class=\"{class}\"><title>{title}</title><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7.5\"/>\
             <text x=\"{x:.1}\" y=\"{below:.1}\">{sign}</text></g>"
        ));
    }

    /// A line through these points.
    pub fn path(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let points = points.join(" ");
        self.add(format_args!(
            r#"<polyline points="{points}" class="{class}" fill="none"/>"#
        ));
    }

    /// A small upright mark.
    pub fn tick(&mut self, x: f64, (top, bottom): (f64, f64), class: &str) {
        self.line((x, top), (x, bottom), class);
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    pub fn finish(self, title: &str) -> String {
        let Self {
            body,
            width,
            height,
        } = self;
        let title = escape(title);
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n{body}</svg>\n"
        )
    }
}

/// Text as it may stand in HTML and in an attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
