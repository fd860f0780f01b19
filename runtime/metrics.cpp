#include "runtime/metrics.hpp"

#include <ostream>
#include <string>

#include "runtime/text_escape.hpp"

namespace kvtier {
namespace {

class prometheus_writer final : public metrics_visitor {
 public:
  explicit prometheus_writer(std::ostream& out) : out_(out) {}

  void visit(const metric& sample) override {
    if (sample.name != name_) {
      name_ = sample.name;
      out_ << "# HELP " << sample.name << ' ' << detail::prometheus_escape(sample.help, false)
           << "\n# TYPE " << sample.name
           << (sample.kind == metric_kind::counter ? " counter\n" : " gauge\n");
    }
    out_ << sample.name;
    if (!sample.label.empty()) {
      out_ << '{' << sample.label << "=\"" << detail::prometheus_escape(sample.label_value, true)
           << "\"}";
    }
    out_ << ' ' << detail::prometheus_number(sample.value) << '\n';
  }

 private:
  std::ostream& out_;
  std::string name_;
};

class json_writer final : public metrics_visitor {
 public:
  explicit json_writer(std::ostream& out) : out_(out) { out_ << '{'; }

  void visit(const metric& sample) override {
    if (sample.name == name_) {
      out_ << ", ";
    } else {
      close_labels();
      out_ << (name_.empty() ? "\n  \"" : ",\n  \"") << detail::json_escape(sample.name) << "\": ";
      name_ = sample.name;
      labelled_ = !sample.label.empty();
      if (labelled_) {
        out_ << '{';
      }
    }
    if (labelled_) {
      out_ << '"' << detail::json_escape(sample.label_value) << "\": ";
    }
    out_ << detail::json_number(sample.value);
  }

  void finish() {
    close_labels();
    out_ << (name_.empty() ? "}\n" : "\n}\n");
  }

 private:
  void close_labels() {
    if (labelled_) {
      out_ << '}';
    }
    labelled_ = false;
  }

  std::ostream& out_;
  std::string name_;
  bool labelled_ = false;
};

}  // namespace

void write_prometheus(const metrics_source& source, std::ostream& out) {
  prometheus_writer writer(out);
  source.visit_metrics(writer);
}

void write_metrics_json(const metrics_source& source, std::ostream& out) {
  json_writer writer(out);
  source.visit_metrics(writer);
  writer.finish();
}

}  // namespace kvtier
