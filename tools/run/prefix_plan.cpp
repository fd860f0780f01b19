#include "tools/run/prefix_plan.hpp"

#include <algorithm>
#include <numeric>

namespace kvtier::run {
namespace {

using token_lists = std::span<const std::vector<std::int32_t>>;

using shareable_parts = std::vector<std::span<const std::int32_t>>;

/// What each prompt may share: all but its own last tokens.
shareable_parts cut_own(token_lists prompts, std::size_t own) {
  shareable_parts parts;
  parts.reserve(prompts.size());
  for (const auto& prompt : prompts) {
    parts.push_back(std::span(prompt).first(prompt.size() - std::min(prompt.size(), own)));
  }
  return parts;
}

/// How far two parts are equal, aligned.
std::size_t shared_tokens(std::span<const std::int32_t> a, std::span<const std::int32_t> b,
                          std::size_t alignment) {
  const auto equal = static_cast<std::size_t>(
      std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  return equal / alignment * alignment;
}

std::vector<std::size_t> sorted_order(const shareable_parts& parts) {
  std::vector<std::size_t> order(parts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::lexicographical_compare(parts[a].begin(), parts[a].end(), parts[b].begin(),
                                        parts[b].end());
  });
  return order;
}

/// Builds the nodes from the prompts in sorted order: prompts that share a prefix are neighbours,
/// so that the open prefixes form a stack, the longest on top.
class node_builder {
 public:
  node_builder(token_lists prompts, std::size_t alignment, std::size_t own)
      : parts_(cut_own(prompts, own)), alignment_(alignment) {
    plan_.node_of_prompt.assign(prompts.size(), no_prefix);
  }

  prefix_plan build() {
    const auto order = sorted_order(parts_);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto next = i + 1 < order.size()
                            ? shared_tokens(parts_[order[i]], parts_[order[i + 1]], alignment_)
                            : 0;
      if (next > open_length()) {
        open_.push_back(add_node(next));
      }
      plan_.node_of_prompt[order[i]] = open_.empty() ? no_prefix : open_.back();
      close_down_to(next);
    }
    link();
    return std::move(plan_);
  }

 private:
  std::size_t open_length() const { return open_.empty() ? 0 : plan_.nodes[open_.back()].length; }

  std::size_t add_node(std::size_t length) {
    plan_.nodes.emplace_back().length = length;
    return plan_.nodes.size() - 1;
  }

  /// Closes the open prefixes longer than `length`. The last one closed hangs below what is left,
  /// or below a new node of exactly `length` that takes its place.
  void close_down_to(std::size_t length) {
    while (!open_.empty() && open_length() > length) {
      const auto closed = open_.back();
      open_.pop_back();
      if (length > open_length()) {
        open_.push_back(add_node(length));
      }
      plan_.nodes[closed].parent = open_.empty() ? no_prefix : open_.back();
    }
  }

  /// Fills children, prompts and first_prompt from the upward links.
  void link() {
    for (auto& node : plan_.nodes) {
      node.first_prompt = no_prefix;
    }
    for (std::size_t prompt = 0; prompt < parts_.size(); ++prompt) {
      auto node = plan_.node_of_prompt[prompt];
      if (node != no_prefix) {
        plan_.nodes[node].prompts.push_back(prompt);
      }
      for (; node != no_prefix; node = plan_.nodes[node].parent) {
        plan_.nodes[node].first_prompt = std::min(plan_.nodes[node].first_prompt, prompt);
      }
    }
    for (std::size_t node = 0; node < plan_.nodes.size(); ++node) {
      if (plan_.nodes[node].parent != no_prefix) {
        plan_.nodes[plan_.nodes[node].parent].children.push_back(node);
      }
    }
    for (auto& node : plan_.nodes) {
      std::sort(node.children.begin(), node.children.end(), [&](std::size_t a, std::size_t b) {
        return plan_.nodes[a].first_prompt < plan_.nodes[b].first_prompt;
      });
    }
  }

  shareable_parts parts_;
  std::size_t alignment_;
  prefix_plan plan_;
  std::vector<std::size_t> open_;
};

}  // namespace

prefix_plan plan_prefixes(token_lists prompts, std::size_t alignment, std::size_t own_tokens) {
  return node_builder(prompts, alignment, own_tokens).build();
}

std::uint64_t distinct_tokens(const prefix_plan& plan, token_lists prompts) {
  const auto length = [&](std::size_t node) {
    return node == no_prefix ? 0 : plan.nodes[node].length;
  };
  std::uint64_t sum = 0;
  for (const auto& node : plan.nodes) {
    sum += node.length - length(node.parent);
  }
  for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    sum += prompts[prompt].size() - length(plan.node_of_prompt[prompt]);
  }
  return sum;
}

}  // namespace kvtier::run
