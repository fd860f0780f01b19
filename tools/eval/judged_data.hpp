/// Some cases of one kind of data with what their queries are judged by.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/task_arena.hpp"
#include "tools/eval/head_case.hpp"
#include "tools/eval/judged_query.hpp"

namespace kvtier::eval {

/// `cases` must outlive it. Throws std::invalid_argument if they do not belong together, and what
/// stored_case and judge throw.
class judged_data {
 public:
  judged_data(const std::vector<head_case>& cases, const exact_window& window,
              cpu::task_arena& arena);

  struct judged_case {
    std::unique_ptr<stored_case> stored;
    std::vector<judged_query> queries;
  };
  const std::vector<judged_case>& cases() const noexcept { return cases_; }
  const std::string& name() const noexcept { return name_; }
  /// Offloaded tokens of the largest context.
  std::uint64_t tokens() const noexcept;

 private:
  std::string name_;
  std::vector<judged_case> cases_;
};

}  // namespace kvtier::eval
