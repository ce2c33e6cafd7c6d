//! Metrics as whoever keeps the numbers gives them, and their text in the OpenMetrics format. The only place that writes
//! that text: names, labels and their escapes are the library's business.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::histogram::Distribution;

/// What one series of a metric says.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number that only grows.
    Counter(u64),
    /// A number of the moment.
    Gauge(u64),
    /// How long things took.
    Histogram(Distribution),
}

/// One metric with its series. The name of a counter ends in `_total`.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What it shows, in a sentence.
    pub help: &'static str,
    /// Labels and value of each series; all values are of one kind.
    pub series: Vec<(Vec<(&'static str, String)>, Value)>,
}

impl Family {
    /// A counter without labels.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, series: vec![(Vec::new(), Value::Counter(value))] }
    }

    /// A gauge without labels.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, series: vec![(Vec::new(), Value::Gauge(value))] }
    }

    /// A metric with one label, whose values are told apart by it.
    pub fn labelled(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (String, Value)>,
    ) -> Self {
        let series = values.into_iter().map(|(of, value)| (vec![(label, of)], value)).collect();
        Self { name, help, series }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some((_, first)) = self.series.first() else { return Ok(()) };
        let kind = match first {
            Value::Counter(_) => MetricType::Counter,
            Value::Gauge(_) => MetricType::Gauge,
            Value::Histogram(_) => MetricType::Histogram,
        };
        // The format adds the ending of a counter itself.
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        let mut metric = encoder.encode_descriptor(name, self.help, None, kind)?;
        for (labels, value) in &self.series {
            if labels.is_empty() {
                value.encode(&mut metric)?;
            } else {
                value.encode(&mut metric.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Counter(value) => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
            Self::Gauge(value) => encoder.encode_gauge(value),
            Self::Histogram(distribution) => encoder.encode_histogram::<NoLabelSet>(
                distribution.sum_s,
                distribution.count,
                &distribution.buckets,
                None,
            ),
        }
    }
}

#[derive(Debug)]
struct Snapshot(Vec<Family>);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|family| family.encode(&mut encoder))
    }
}

/// The text of all metrics.
///
/// # Errors
/// When the library finds a value that the format cannot say.
pub fn render(families: Vec<Family>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(families)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::histogram::Histogram;
    use super::*;

    #[test]
    fn a_counter_is_told_by_its_family_and_its_sample_ends_in_total() {
        let text = render(vec![Family::counter("tidefs_hits_total", "Opens.", 3)]).unwrap();
        assert_eq!(
            text,
            "# HELP tidefs_hits Opens.\n# TYPE tidefs_hits counter\ntidefs_hits_total 3\n# EOF\n"
        );
    }

    #[test]
    fn labels_are_escaped_and_the_largest_number_is_whole() {
        let values = [("/mnt/\"a\\b\"\n".to_owned(), Value::Gauge(u64::MAX))];
        let text = render(vec![Family::labelled("bytes", "Bytes.", "device", values)]).unwrap();
        assert!(text.contains("bytes{device=\"/mnt/\\\"a\\\\b\\\"\\n\"} 18446744073709551615\n"), "{text}");
    }

    #[test]
    fn a_histogram_has_a_sum_a_count_and_an_endless_bucket() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_micros(100));
        histogram.observe(Duration::from_secs(1000));
        let values = [("a".to_owned(), Value::Histogram(histogram.distribution()))];
        let text = render(vec![Family::labelled("t_seconds", "Time.", "device", values)]).unwrap();
        assert!(text.contains("t_seconds_count{device=\"a\"} 2\n"), "{text}");
        assert!(text.contains("t_seconds_bucket{le=\"+Inf\",device=\"a\"} 2\n"), "{text}");
    }
}
