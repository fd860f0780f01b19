#include <array>
#include <map>

#include "runtime/policies/placement.hpp"

namespace kvtier {
namespace {

class lru_placement final : public placement_policy {
 public:
  void insert(extent& entry) override {
    if (entry.stamp == 0) {
      entry.stamp = ++clock_;
    }
    order(entry.home).emplace(entry.stamp, &entry);
  }

  void remove(extent& entry) override { order(entry.home).erase(entry.stamp); }

  void touch(extent& entry) override {
    order(entry.home).erase(entry.stamp);
    entry.stamp = ++clock_;
    order(entry.home).emplace(entry.stamp, &entry);
  }

  extent* victim(tier where, const predicate& may_leave) override {
    for (const auto& [stamp, entry] : order(where)) {
      if (may_leave(*entry)) {
        return entry;
      }
    }
    return nullptr;
  }

 private:
  using stamp_order = std::map<std::uint64_t, extent*>;

  stamp_order& order(tier where) { return orders_[static_cast<std::size_t>(where)]; }

  std::uint64_t clock_ = 0;
  std::array<stamp_order, tier_count> orders_;
};

}  // namespace

std::unique_ptr<placement_policy> make_lru_placement() { return std::make_unique<lru_placement>(); }

}  // namespace kvtier
