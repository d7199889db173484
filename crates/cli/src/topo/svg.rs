//! The drawing of one host, or of two and their rails, as SVG for a page. Text has a fixed width, so that every box is
//! as wide as its text, and nothing overlaps.

use super::text::port_name;
use super::view::{DevicePair, Host, Port, View};
use std::fmt::Write as _;

/// Widths and heights in pixels.
const MARGIN: usize = 24;
const HOST_WIDTH: usize = 320;
const PADDING: usize = 12;
const GAP: usize = 10;
const LABEL_WIDTH: usize = 190;
const LABEL_HEIGHT: usize = 48;
/// The room for lines between a host and the labels.
const LINES_WIDTH: usize = 90;
const LINE_HEIGHT: usize = 16;
/// The width of a character of 12 pixels in a monospaced font, in tenths of a pixel.
const CHARACTER_TENTHS: usize = 73;

/// A host's box.
#[derive(Debug, Default)]
pub(crate) struct HostBox {
    pub(crate) title: String,
    pub(crate) devices: Vec<DeviceBox>,
}

/// A device's box, or another group of ports.
#[derive(Debug, Default)]
pub(crate) struct DeviceBox {
    pub(crate) title: String,
    pub(crate) ports: Vec<PortBox>,
}

/// A port's box. Unused ones are grey, and have a reason.
#[derive(Debug, Default)]
pub(crate) struct PortBox {
    pub(crate) name: String,
    pub(crate) lines: Vec<String>,
    pub(crate) reason: Option<String>,
    pub(crate) is_used: bool,
    /// The address, by which rails find it.
    key: String,
}

/// The elements of a drawing, and its extent.
#[derive(Default)]
struct Canvas {
    body: String,
    bottom: usize,
}

impl Canvas {
    fn rectangle(&mut self, [x, y, width, height]: [usize; 4], class: &str) {
        let _ =
            writeln!(self.body, r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>"#);
        self.bottom = self.bottom.max(y + height);
    }

    fn text(&mut self, x: usize, y: usize, text: &str, class: &str) {
        let _ = writeln!(self.body, r#"<text class="{class}" x="{x}" y="{y}">{}</text>"#, escaped(text));
        self.bottom = self.bottom.max(y + 4);
    }

    /// Draws a line that leaves both ends level.
    fn line(&mut self, from: (usize, usize), to: (usize, usize)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let middle = usize::midpoint(x1, x2);
        let _ = writeln!(self.body, r#"<path class="rail" d="M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"/>"#);
    }

    fn finish(self, width: usize, title: &str) -> String {
        let height = self.bottom + MARGIN;
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg"
 width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<title>{title}</title>
<style>
text {{ font: 12px "DejaVu Sans Mono", "Liberation Mono", monospace; fill: #1f2933; }}
.title {{ font-size: 18px; font-weight: bold; }}
.host {{ fill: #f4f6f8; stroke: #52606d; stroke-width: 1.5; }}
.name {{ font-weight: bold; }}
.device {{ fill: #e3edf7; stroke: #7b9cc0; }}
.port {{ fill: #ffffff; stroke: #2f6fab; stroke-width: 1.5; }}
.unused {{ fill: #eceff1; stroke: #b0bec5; stroke-dasharray: 4 3; }}
.grey {{ fill: #78909c; }}
.rail {{ fill: none; stroke: #2f855a; stroke-width: 2.5; }}
.label {{ fill: #e6f4ec; stroke: #2f855a; }}
.refusal {{ fill: #b42318; }}
</style>
<rect width="{width}" height="{height}" fill="#ffffff"/>
{body}</svg>
"##,
            title = escaped(title),
            body = self.body
        )
    }
}

/// Returns a text as XML's character data. Characters that XML does not allow are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() || ['\u{fffe}', '\u{ffff}'].contains(&c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Returns the number of characters that fit into a width.
fn characters(width: usize) -> usize {
    width * 10 / CHARACTER_TENTHS
}

/// Cuts a text in the middle, where names differ least.
fn cut(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(1);
    let (head, tail) = (kept.div_ceil(2), kept / 2);
    let end: String = text.chars().skip(count - tail).collect();
    format!("{}…{end}", text.chars().take(head).collect::<String>())
}

/// Breaks a text into lines of at most this many characters, between words where that is possible.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().expect("there is always one");
            let used = line.chars().count();
            let blank = usize::from(used > 0);
            if used + blank + word.len() <= most {
                if blank == 1 {
                    line.push(' ');
                }
                line.extend(word);
                break;
            }
            // A word longer than a line is broken.
            if used == 0 {
                line.extend(word.drain(..most.max(1).min(word.len())));
            }
            lines.push(String::new());
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// Draws a host. Returns the middle of each port's right edge, by its address, as heights.
fn draw_host(canvas: &mut Canvas, host: &HostBox, x: usize, top: usize, width: usize) -> Vec<(String, usize)> {
    // The host's box goes behind the others, so it comes first, with a height that is known only afterwards.
    let mut inner = Canvas::default();
    let mut places = Vec::new();
    let inside = width - 2 * PADDING;
    let mut y = top + PADDING + LINE_HEIGHT;
    inner.text(x + PADDING, y, &cut(&host.title, characters(inside)), "name");
    y += PADDING;
    for device in &host.devices {
        let mut ports = Canvas::default();
        let device_top = y;
        y += PADDING + LINE_HEIGHT - 4;
        ports.text(x + 2 * PADDING, y, &cut(&device.title, characters(inside - 2 * PADDING)), "name");
        y += GAP;
        for port in &device.ports {
            let height = draw_port(&mut ports, port, x + 2 * PADDING, y, inside - 2 * PADDING);
            places.push((port.key.clone(), y + height / 2));
            y += height + GAP;
        }
        inner.rectangle([x + PADDING, device_top, inside, y - device_top], "device");
        inner.body += &ports.body;
        y += GAP;
    }
    canvas.rectangle([x, top, width, y - top], "host");
    canvas.body += &inner.body;
    places
}

/// Draws a port, and returns its height.
fn draw_port(canvas: &mut Canvas, port: &PortBox, x: usize, y: usize, width: usize) -> usize {
    let most = characters(width - 2 * PADDING);
    let reason = port.reason.as_deref().map(|reason| wrapped(reason, most)).unwrap_or_default();
    let count = 1 + port.lines.len() + reason.len();
    let height = count * LINE_HEIGHT + PADDING;
    let grey = if port.is_used { "" } else { "grey" };
    canvas.rectangle([x, y, width, height], if port.is_used { "port" } else { "unused" });
    let lines = std::iter::once(&port.name).chain(&port.lines).map(|line| cut(line, most)).chain(reason);
    for (number, line) in lines.enumerate() {
        let class = if number == 0 { format!("name {grey}") } else { grey.to_owned() };
        canvas.text(x + PADDING, y + (number + 1) * LINE_HEIGHT + 2, &line, class.trim());
    }
    height
}

/// Returns the drawing of one host.
pub(crate) fn one_host(title: &str, host: &HostBox) -> String {
    let mut canvas = Canvas::default();
    let width = 2 * HOST_WIDTH;
    canvas.text(MARGIN, MARGIN + LINE_HEIGHT, &cut(title, characters(width) * 2 / 3), "title");
    draw_host(&mut canvas, host, MARGIN, MARGIN + 3 * LINE_HEIGHT, width);
    canvas.finish(width + 2 * MARGIN, title)
}

impl PortBox {
    /// Returns a port's box. `reason` is set if it is not used.
    pub(crate) fn new(name: String, lines: Vec<String>, reason: Option<String>) -> Self {
        Self { name, lines, is_used: reason.is_none(), reason, key: String::new() }
    }

    fn of(port: &Port, rails: bool, reason: Option<&String>) -> Self {
        let lines =
            vec![port.address.clone(), format!("{}, {} Mbit/s, MTU {}", port.link_layer, port.speed_mbps, port.mtu)];
        let reason = if rails { None } else { reason.cloned() };
        Self { name: port_name(port), lines, reason, is_used: rails, key: port.address.clone() }
    }
}

/// Returns the box of a host of a pairing: 0 this host, 1 the peer.
fn host_box(view: &View, side: usize, pairs: &[&DevicePair]) -> HostBox {
    let host: &Host = &view.hosts[side];
    let rails = |port: &Port| pairs.iter().flat_map(|pair| &pair.rails).any(|rail| rail.ports[side] == *port);
    let reason = |port: &Port| {
        let all = pairs.iter().flat_map(|pair| &pair.unpaired);
        all.filter(|lone| lone.host == side && lone.port == *port && lone.of_device).map(|lone| &lone.reason).next()
    };
    let port_box = |port: &Port| PortBox::of(port, rails(port), reason(port));
    let device = |(number, device): (usize, &super::view::Device)| DeviceBox {
        title: format!("device {number}: {}", device.name),
        ports: device.ports.iter().map(port_box).collect(),
    };
    let mut devices: Vec<DeviceBox> = host.devices.iter().enumerate().map(device).collect();
    // TCP is drawn where it carries something.
    if let Some(tcp) = &host.tcp
        && tcp.ports.iter().any(rails)
    {
        devices.push(DeviceBox { title: "TCP".to_owned(), ports: tcp.ports.iter().map(port_box).collect() });
    }
    HostBox { title: host.name.clone(), devices }
}

/// Returns the drawing of a pairing.
pub(crate) fn pairing(view: &View) -> String {
    let pairs = view.main_pairs();
    let mut canvas = Canvas::default();
    let labels_x = MARGIN + HOST_WIDTH + LINES_WIDTH;
    let right_x = labels_x + LABEL_WIDTH + LINES_WIDTH;
    let width = right_x + HOST_WIDTH + MARGIN;
    let inside = width - 2 * MARGIN;
    let title = format!("{} ↔ {}", view.hosts[0].name, view.hosts[1].name);
    let mut y = MARGIN + LINE_HEIGHT;
    canvas.text(MARGIN, y, &cut(&title, characters(inside) * 2 / 3), "title");
    y += GAP;
    for pair in &pairs {
        y += LINE_HEIGHT;
        canvas.text(MARGIN, y, &cut(&summary(view, pair), characters(inside)), "");
    }
    let top = y + LINE_HEIGHT;
    let left = draw_host(&mut canvas, &host_box(view, 0, &pairs), MARGIN, top, HOST_WIDTH);
    let right = draw_host(&mut canvas, &host_box(view, 1, &pairs), right_x, top, HOST_WIDTH);
    draw_rails(&mut canvas, &pairs, top, labels_x, [&left, &right]);
    y = canvas.bottom + LINE_HEIGHT;
    for pair in &pairs {
        for line in pair.refusal.iter().flat_map(|refusal| wrapped(refusal, characters(inside))) {
            y += LINE_HEIGHT;
            canvas.text(MARGIN, y, &line, "refusal");
        }
    }
    canvas.finish(width, &title)
}

/// Returns the line about a pair of devices.
fn summary(view: &View, pair: &DevicePair) -> String {
    let name = |side: usize| {
        let number = pair.devices[side];
        view.hosts[side].devices.get(number).map_or_else(String::new, |device| format!("{number} {}", device.name))
    };
    let how = match (pair.step, pair.step_name) {
        (Some(step), Some(name)) => {
            let speed: u64 = pair.rails.iter().map(|rail| u64::from(rail.speed_mbps)).sum();
            format!("step {step}, {name}; {} rails, {speed} Mbit/s", pair.rails.len()).replace("1 rails", "1 rail")
        }
        _ => "no rail".to_owned(),
    };
    format!("device {} ↔ device {}: {how}", cut(&name(0), 32), cut(&name(1), 32))
}

/// Draws each rail as a line through a label of its own.
fn draw_rails(canvas: &mut Canvas, pairs: &[&DevicePair], top: usize, x: usize, places: [&Vec<(String, usize)>; 2]) {
    let place =
        |side: usize, port: &Port| places[side].iter().find(|(address, _)| *address == port.address).map(|(_, y)| *y);
    let mut rails = Vec::new();
    for rail in pairs.iter().flat_map(|pair| pair.rails.iter().enumerate()) {
        if let (Some(left), Some(right)) = (place(0, &rail.1.ports[0]), place(1, &rail.1.ports[1])) {
            rails.push((usize::midpoint(left, right), left, right, rail));
        }
    }
    rails.sort_by_key(|(middle, left, ..)| (*middle, *left));
    let mut next = top;
    let mut heights = Vec::new();
    for (middle, ..) in &rails {
        let y = middle.saturating_sub(LABEL_HEIGHT / 2).max(next);
        next = y + LABEL_HEIGHT + GAP;
        heights.push(y);
    }
    // Labels that push each other down move up again by half of it.
    let pushed = rails.iter().zip(&heights).map(|((middle, ..), y)| (y + LABEL_HEIGHT / 2).saturating_sub(*middle));
    let pushed = pushed.sum::<usize>() / rails.len().max(1);
    let up = heights.first().map_or(0, |first| pushed.min(first - top));
    for ((_, left, right, (number, rail)), y) in rails.into_iter().zip(heights) {
        let y = y - up;
        let center = y + LABEL_HEIGHT / 2;
        canvas.line((x - LINES_WIDTH - 2 * PADDING, left), (x, center));
        canvas.line((x + LABEL_WIDTH, center), (x + LABEL_WIDTH + LINES_WIDTH + 2 * PADDING, right));
        canvas.rectangle([x, y, LABEL_WIDTH, LABEL_HEIGHT], "label");
        let subnet = rail.subnet.as_deref().unwrap_or("routed");
        let most = characters(LABEL_WIDTH - 16);
        canvas.text(x + 8, y + 19, &cut(&format!("{number}: {subnet}"), most), "name");
        let carries = format!("{} Mbit/s, {:.1} %", rail.speed_mbps, 100.0 * rail.share);
        canvas.text(x + 8, y + 37, &cut(&carries, most), "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::examples::half;

    /// Returns the rectangles of a class, as x, y, width and height.
    fn rectangles(svg: &str, class: &str) -> Vec<[usize; 4]> {
        let start = format!("<rect class=\"{class}\"");
        let value = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let lines = svg.lines().filter(|line| line.starts_with(&start));
        lines.map(|line| ["x", "y", "width", "height"].map(|name| value(line, name))).collect()
    }

    fn overlap(one: &[usize; 4], other: &[usize; 4]) -> bool {
        let apart = |at: usize| one[at] + one[at + 2] <= other[at] || other[at] + other[at + 2] <= one[at];
        !apart(0) && !apart(1)
    }

    /// Returns a view of two hosts with this many ports each, of which each device has `fused`; the peer's ports are in
    /// the other order, so that every line crosses every other.
    fn view(ports: usize, fused: usize) -> View {
        let ours: Vec<String> = (0..ports).map(|port| format!("10.0.{port}.1/24")).collect();
        let theirs: Vec<String> = (0..ports).rev().map(|port| format!("10.0.{port}.2/24")).collect();
        let hosts = [("a", &ours), ("b", &theirs)].map(|(name, ports)| {
            let all: Vec<&str> = ports.iter().map(String::as_str).collect();
            half(name, &all.chunks(fused).collect::<Vec<_>>())
        });
        View::new(&hosts[0], &hosts[1], true)
    }

    #[test]
    fn no_two_boxes_overlap_and_text_stays_inside_the_picture() {
        for ports in [1, 2, 4, 8] {
            let svg = pairing(&view(ports, ports));
            let mut boxes = rectangles(&svg, "port");
            assert_eq!((boxes.len(), rectangles(&svg, "label").len()), (2 * ports, ports));
            boxes.extend(rectangles(&svg, "label"));
            for (place, one) in boxes.iter().enumerate() {
                assert!(boxes[..place].iter().all(|other| !overlap(one, other)), "{ports}: {one:?}");
            }
            assert!(overlap(&boxes[0], &boxes[0]), "the check can fail");
            let height: usize = svg.split("height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
            assert!(boxes.iter().all(|[_, y, _, size]| y + size < height));
        }
    }

    #[test]
    fn unused_ports_are_grey_with_their_reason_and_refusals_are_shown() {
        let ours = half("a", &[&["10.0.0.1/24", "10.9.0.1/24"]]);
        let svg = pairing(&View::new(&ours, &half("b", &[&["10.0.0.2/24"]]), true));
        assert_eq!((rectangles(&svg, "unused").len(), rectangles(&svg, "port").len()), (1, 2));
        assert!(svg.contains("no port of b is on the"), "{svg}");
        let refused = pairing(&View::new(&ours, &half("b", &[&["fd00::1/64"]]), true));
        assert!(refused.contains("class=\"refusal\"") && !svg.contains("class=\"refusal\""));
    }

    #[test]
    fn names_from_a_peer_are_text_and_nothing_else() {
        let mut theirs = half("<script>", &[&["10.0.0.2/24"]]);
        theirs.devices[0].name = "\"&'\u{1}".repeat(90);
        theirs.devices[0].ports[0].name = "x".repeat(500);
        let svg = pairing(&View::new(&half("a", &[&["10.0.0.1/24"]]), &theirs, true));
        assert!(!svg.contains("<script>") && svg.contains("&lt;script&gt;") && !svg.contains('\u{1}'));
        assert!(!svg.contains(&"x".repeat(60)));
    }

    #[test]
    fn long_texts_are_cut_or_wrapped() {
        assert_eq!(cut("enp1s0f0np0", 11), "enp1s0f0np0");
        assert_eq!(cut("enp1s0f0np0", 5), "en…p0");
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert!(wrapped("", 3).is_empty());
    }
}
