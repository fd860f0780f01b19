/// Where the source tree has what tests of the decoder load.
#pragma once

#include <filesystem>

namespace kvtier::test {

std::filesystem::path tests_folder();
/// The model that finds facts in a text.
std::filesystem::path needle_folder();
/// One small model, with what Hugging Face computed with it, per folder.
std::filesystem::path decoder_goldens();

}  // namespace kvtier::test
