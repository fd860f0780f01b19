#include "tools/run/pending_work.hpp"

#include <algorithm>
#include <utility>

namespace kvtier::run {
namespace {

/// Work in the order of its first prompt.
using ordered_work = std::vector<std::pair<std::size_t, work_item>>;

void sort_by_prompt(ordered_work& work) {
  std::sort(work.begin(), work.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
}

/// Prompts before longer prefixes: the last of those takes the place of this one, so that of a long
/// chain of prefixes two are held at a time.
ordered_work children_of(const prefix_plan& plan, std::size_t node) {
  ordered_work children, longer;
  for (const auto prompt : plan.nodes[node].prompts) {
    children.push_back({prompt, {false, prompt}});
  }
  for (const auto child : plan.nodes[node].children) {
    longer.push_back({plan.nodes[child].first_prompt, {true, child}});
  }
  sort_by_prompt(children);
  sort_by_prompt(longer);
  children.insert(children.end(), longer.begin(), longer.end());
  return children;
}

}  // namespace

pending_work::pending_work(const prefix_plan& plan, std::function<void(context_id)> release)
    : plan_(plan),
      release_(std::move(release)),
      parent_of_prompt_(plan.node_of_prompt),
      context_(plan.nodes.size(), 0),
      cost_(plan.nodes.size()) {
  ordered_work roots;
  for (std::size_t node = 0; node < plan.nodes.size(); ++node) {
    const prefix_node& planned = plan.nodes[node];
    parent_of_node_.push_back(planned.parent);
    waiting_.push_back(planned.children.size() + planned.prompts.size());
    if (planned.parent == no_prefix) {
      roots.push_back({planned.first_prompt, {true, node}});
    }
  }
  for (std::size_t prompt = 0; prompt < plan.node_of_prompt.size(); ++prompt) {
    if (plan.node_of_prompt[prompt] == no_prefix) {
      roots.push_back({prompt, {false, prompt}});
    }
  }
  sort_by_prompt(roots);
  for (const auto& [first, item] : roots) {
    pending_.push_back(item);
  }
}

std::size_t& pending_work::parent_of(work_item item) {
  return item.is_prefix ? parent_of_node_[item.index] : parent_of_prompt_[item.index];
}

std::size_t pending_work::parent_of(work_item item) const {
  return item.is_prefix ? parent_of_node_[item.index] : parent_of_prompt_[item.index];
}

std::optional<read_prefix> pending_work::prefix_of(work_item item) const {
  const auto parent = parent_of(item);
  if (parent == no_prefix || context_[parent] == 0) {
    return std::nullopt;
  }
  return read_prefix{context_[parent], plan_.nodes[parent].length, &cost_[parent]};
}

std::size_t pending_work::live_ancestor(std::size_t node) const {
  while (node != no_prefix && context_[node] == 0) {
    node = plan_.nodes[node].parent;
  }
  return node;
}

bool pending_work::holds_prefix_of(work_item item) const {
  return live_ancestor(parent_of(item)) != no_prefix;
}

void pending_work::settle(work_item item) {
  const auto parent = std::exchange(parent_of(item), no_prefix);
  if (parent != no_prefix && --waiting_[parent] == 0) {
    release(parent);
  }
}

void pending_work::add_prefix(std::size_t node, context_id context, const batch_result& cost) {
  context_[node] = context;
  cost_[node] = cost;
  push_children(node);
}

void pending_work::skip_prefix(std::size_t node) {
  abandon(node);
  push_children(node);
  settle({true, node});
}

void pending_work::abandon_prefixes_of(work_item item) {
  auto node = item.is_prefix ? plan_.nodes[item.index].parent : plan_.node_of_prompt[item.index];
  for (; node != no_prefix; node = plan_.nodes[node].parent) {
    abandon(node);
  }
}

/// What comes next after a prefix goes to the front.
void pending_work::push_children(std::size_t node) {
  const ordered_work children = children_of(plan_, node);
  for (auto child = children.rbegin(); child != children.rend(); ++child) {
    pending_.push_front(child->second);
  }
}

/// Hangs what still waits for this prefix at the next shorter one that is there.
void pending_work::abandon(std::size_t node) {
  release(node);
  const auto target = live_ancestor(plan_.nodes[node].parent);
  for (const auto& [first, child] : children_of(plan_, node)) {
    if (std::size_t& parent = parent_of(child); parent == node) {
      parent = target;
      --waiting_[node];
      if (target != no_prefix) {
        ++waiting_[target];
      }
    }
  }
}

void pending_work::release(std::size_t node) {
  if (context_[node] != 0) {
    release_(std::exchange(context_[node], 0));
  }
}

std::vector<std::size_t> pending_work::take_prompts(std::vector<work_item> reading) {
  std::vector<work_item> left(pending_.begin(), pending_.end());
  left.insert(left.end(), reading.begin(), reading.end());
  pending_.clear();
  std::vector<std::size_t> prompts;
  while (!left.empty()) {
    const auto item = left.back();
    left.pop_back();
    if (!item.is_prefix) {
      prompts.push_back(item.index);
      continue;
    }
    for (const auto& [first, child] : children_of(plan_, item.index)) {
      left.push_back(child);
    }
  }
  for (std::size_t node = 0; node < context_.size(); ++node) {
    release(node);
  }
  return prompts;
}

}  // namespace kvtier::run
