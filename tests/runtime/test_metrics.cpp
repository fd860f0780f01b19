#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/metrics.hpp"

namespace kvtier {
namespace {

class fixed_source final : public metrics_source {
 public:
  explicit fixed_source(std::vector<metric> samples) : samples_(std::move(samples)) {}
  void visit_metrics(metrics_visitor& visitor) const override {
    for (const auto& sample : samples_) {
      visitor.visit(sample);
    }
  }

 private:
  std::vector<metric> samples_;
};

struct parsed_sample {
  std::string name, label, label_value;
  double value = 0;
};

struct parsed_text {
  std::map<std::string, std::string> help, type;
  std::vector<parsed_sample> samples;
};

// Reads the text exposition format 0.0.4, strictly: what a scraper would refuse throws.
class prometheus_parser {
 public:
  static parsed_text parse(const std::string& text) {
    prometheus_parser parser;
    if (!text.empty() && text.back() != '\n') {
      throw std::runtime_error("the last line has no end");
    }
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      parser.add_line(line);
    }
    return parser.result_;
  }

 private:
  void add_line(const std::string& line) {
    if (line.starts_with("# HELP ")) {
      add_comment(result_.help, line.substr(7), false);
    } else if (line.starts_with("# TYPE ")) {
      add_comment(result_.type, line.substr(7), true);
    } else {
      result_.samples.push_back(parse_sample(line));
    }
  }

  void add_comment(std::map<std::string, std::string>& where, std::string_view text, bool type) {
    const std::size_t space = text.find(' ');
    const std::string name(text.substr(0, space));
    const std::string rest =
        unescape(space == std::string_view::npos ? "" : text.substr(space + 1), false);
    if (!where.emplace(name, rest).second) {
      throw std::runtime_error("a second comment for " + name);
    }
    if (type && rest != "counter" && rest != "gauge") {
      throw std::runtime_error("unknown type " + rest);
    }
  }

  parsed_sample parse_sample(std::string_view line) const {
    parsed_sample sample;
    const std::size_t name_end = line.find_first_of("{ ");
    sample.name = line.substr(0, name_end);
    if (!result_.type.contains(sample.name) || !result_.help.contains(sample.name)) {
      throw std::runtime_error("no HELP and TYPE before " + sample.name);
    }
    line.remove_prefix(name_end);
    if (line[0] == '{') {
      const std::size_t equals = line.find("=\"");
      sample.label = line.substr(1, equals - 1);
      std::size_t close = equals + 2;
      while (line.at(close) != '"') {
        close += line.at(close) == '\\' ? 2u : 1u;
      }
      sample.label_value = unescape(line.substr(equals + 2, close - equals - 2), true);
      if (line.at(close + 1) != '}') {
        throw std::runtime_error("a label list that does not end");
      }
      line.remove_prefix(close + 2);
    }
    sample.value = parse_number(std::string(line.substr(1)));
    return sample;
  }

  static double parse_number(const std::string& text) {
    if (text == "+Inf" || text == "-Inf") {
      return text[0] == '+' ? std::numeric_limits<double>::infinity()
                            : -std::numeric_limits<double>::infinity();
    }
    if (text == "NaN") {
      return std::numeric_limits<double>::quiet_NaN();
    }
    std::size_t used = 0;
    const double value = std::stod(text, &used);
    if (used != text.size()) {
      throw std::runtime_error("not a number: " + text);
    }
    return value;
  }

  static std::string unescape(std::string_view text, bool quotes) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char next = text.at(++i);
      if (next != 'n' && next != '\\' && !(quotes && next == '"')) {
        throw std::runtime_error("unknown escape in " + std::string(text));
      }
      out += next == 'n' ? '\n' : next;
    }
    return out;
  }

  parsed_text result_;
};

fixed_source awkward_source() {
  return fixed_source({
      {"kvtier_steps_total", "Steps that ended.", metric_kind::counter, "", "", 3},
      {"kvtier_tier_bytes", "Bytes in a tier,\nslots \\ rings \"included\".", metric_kind::gauge,
       "tier", "device", 1.5},
      {"kvtier_tier_bytes", "", metric_kind::gauge, "tier", "a \"b\" \\ c\nd}", -0.1},
      {"kvtier_read_bytes_total", "Read.", metric_kind::counter, "", "", 9007199254740991.0},
  });
}

std::string prometheus_text(const metrics_source& source) {
  std::ostringstream out;
  write_prometheus(source, out);
  return out.str();
}

nlohmann::json json_of(const metrics_source& source) {
  std::ostringstream out;
  write_metrics_json(source, out);
  return nlohmann::json::parse(out.str());
}

TEST(metrics, prometheus_text_reads_back_as_what_was_visited) {
  const parsed_text text = prometheus_parser::parse(prometheus_text(awkward_source()));
  EXPECT_EQ(text.type,
            (std::map<std::string, std::string>{{"kvtier_steps_total", "counter"},
                                                {"kvtier_tier_bytes", "gauge"},
                                                {"kvtier_read_bytes_total", "counter"}}));
  EXPECT_EQ(text.help.at("kvtier_tier_bytes"), "Bytes in a tier,\nslots \\ rings \"included\".");
  ASSERT_EQ(text.samples.size(), 4u);
  EXPECT_EQ(text.samples[0].name, "kvtier_steps_total");
  EXPECT_EQ(text.samples[0].label, "");
  EXPECT_EQ(text.samples[0].value, 3.0);
  EXPECT_EQ(text.samples[1].label, "tier");
  EXPECT_EQ(text.samples[1].label_value, "device");
  EXPECT_EQ(text.samples[1].value, 1.5);
  EXPECT_EQ(text.samples[2].label_value, "a \"b\" \\ c\nd}");
  EXPECT_EQ(text.samples[2].value, -0.1);
  EXPECT_EQ(text.samples[3].value, 9007199254740991.0);
}

TEST(metrics, prometheus_writes_help_and_type_once_per_name) {
  const std::string text = prometheus_text(awkward_source());
  const std::string line = "# TYPE kvtier_tier_bytes gauge\n";
  const std::size_t first = text.find(line);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find(line, first + 1), std::string::npos);
}

TEST(metrics, prometheus_spells_values_that_are_not_finite) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const fixed_source source({{"a", "h", metric_kind::gauge, "k", "plus", inf},
                             {"a", "h", metric_kind::gauge, "k", "minus", -inf},
                             {"a", "h", metric_kind::gauge, "k", "nan", std::nan("")}});
  const parsed_text text = prometheus_parser::parse(prometheus_text(source));
  ASSERT_EQ(text.samples.size(), 3u);
  EXPECT_EQ(text.samples[0].value, inf);
  EXPECT_EQ(text.samples[1].value, -inf);
  EXPECT_TRUE(std::isnan(text.samples[2].value));
}

TEST(metrics, json_has_numbers_by_name_and_objects_by_label) {
  const nlohmann::json json = json_of(awkward_source());
  EXPECT_EQ(json.size(), 3u);
  EXPECT_EQ(json.at("kvtier_steps_total"), 3);
  EXPECT_EQ(json.at("kvtier_read_bytes_total"), 9007199254740991.0);
  EXPECT_EQ(json.at("kvtier_tier_bytes").size(), 2u);
  EXPECT_EQ(json.at("kvtier_tier_bytes").at("device"), 1.5);
  EXPECT_EQ(json.at("kvtier_tier_bytes").at("a \"b\" \\ c\nd}"), -0.1);
}

TEST(metrics, json_is_valid_for_bytes_that_are_not_text_and_numbers_that_are_not_finite) {
  const fixed_source source({{"a", "h", metric_kind::gauge, "k", "\xc3\x28\x01\xe2\x82", 1},
                             {"a", "h", metric_kind::gauge, "k", "\xc3\xa4", std::nan("")}});
  const nlohmann::json json = json_of(source);
  EXPECT_EQ(json.at("a").at("\xef\xbf\xbd(\x01\xef\xbf\xbd\xef\xbf\xbd"), 1);
  EXPECT_TRUE(json.at("a").at("\xc3\xa4").is_null());
}

TEST(metrics, nothing_visited_is_an_empty_page_and_an_empty_object) {
  const fixed_source empty({});
  EXPECT_EQ(prometheus_text(empty), "");
  EXPECT_EQ(json_of(empty), nlohmann::json::object());
}

}  // namespace
}  // namespace kvtier
