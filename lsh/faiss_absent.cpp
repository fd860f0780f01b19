#include <stdexcept>

#include "lsh/faiss_selector.hpp"

namespace kvtier::lsh {

std::unique_ptr<token_selector> make_faiss_selector(const selector_config& options, std::uint32_t) {
  throw std::invalid_argument("selector \"" + to_string(options) +
                              "\": kvtier was built without FAISS; build it with libfaiss-dev "
                              "installed and KVTIER_FAISS=ON");
}

}  // namespace kvtier::lsh
