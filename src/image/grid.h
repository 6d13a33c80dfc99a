// Several pictures as one. Thread-safe: no state.
#pragma once

#include <vector>

#include "image/image.h"

namespace flowshard::image {

/// The pictures row by row, `columns` in a row, each in a cell of the largest width and height, with a white
/// border. At least one picture and one column.
Image grid(const std::vector<Image>& images, int columns, int border = 4);

}  // namespace flowshard::image
