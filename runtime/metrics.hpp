/// Metrics: the class that owns a number describes it to a visitor; writers print what they visit.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string_view>

namespace kvtier {

enum class metric_kind : std::uint8_t { counter, gauge };

/// One sample. Names and units follow Prometheus: `kvtier_` prefix, base units, counters end in
/// _total.
struct metric {
  std::string_view name;
  std::string_view help;
  metric_kind kind = metric_kind::counter;
  std::string_view label;  ///< label name, e.g. "tier"; empty = no label
  std::string_view label_value;
  double value = 0.0;
};

/// Samples of one name arrive one after another.
class metrics_visitor {
 public:
  virtual ~metrics_visitor() = default;
  virtual void visit(const metric& sample) = 0;
};

/// Anything that has metrics.
class metrics_source {
 public:
  virtual ~metrics_source() = default;
  /// Thread-safe.
  virtual void visit_metrics(metrics_visitor& visitor) const = 0;
};

/// Prometheus text exposition 0.0.4.
void write_prometheus(const metrics_source& source, std::ostream& out);
/// {"name": value} or {"name": {"label_value": value}}, one object.
void write_metrics_json(const metrics_source& source, std::ostream& out);

}  // namespace kvtier
