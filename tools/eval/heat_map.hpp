/// Scores over two dimensions as a grid of coloured cells, in SVG.
#pragma once

#include <string>
#include <vector>

namespace kvtier::eval {

/// Names and titles are plain text.
struct heat_map_data {
  std::string title;                      ///< read out in place of the picture
  std::string row_title;                  ///< "depth"
  std::string column_title;               ///< "tokens"
  std::vector<std::string> row_names;     ///< from the top
  std::vector<std::string> column_names;  ///< from the left
  /// Scores in [0, 1], row by row, [row_names x column_names]; a dash stands for what is not
  /// finite.
  std::vector<double> cells;
};

/// An <svg> element with a style of its own: it stands alone, in a page or a file, and follows the
/// theme. Scores are printed in their cells, so that colour only helps. Cells beyond [0, 1] have
/// the nearest colour. Throws std::invalid_argument if the sizes disagree.
std::string heat_map(const heat_map_data& data);

}  // namespace kvtier::eval
