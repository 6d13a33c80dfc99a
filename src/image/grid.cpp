#include "image/grid.h"

#include <algorithm>

#include "core/error.h"

namespace flowshard::image {

Image grid(const std::vector<Image>& images, int columns, int border) {
  check(!images.empty() && columns > 0 && border >= 0, "a grid has pictures and columns");
  int cell_width = 0, cell_height = 0;
  for (const Image& image : images) {
    cell_width = std::max(cell_width, image.width);
    cell_height = std::max(cell_height, image.height);
  }
  const int rows = (static_cast<int>(images.size()) + columns - 1) / columns;
  Image result{.width = columns * (cell_width + border) + border,
               .height = rows * (cell_height + border) + border,
               .pixels = {}};
  result.pixels.assign(static_cast<size_t>(result.width) * static_cast<size_t>(result.height) * 3, 255);
  for (int i = 0; i < static_cast<int>(images.size()); ++i) {
    const Image& image = images[static_cast<size_t>(i)];
    const int left = border + i % columns * (cell_width + border),
              top = border + i / columns * (cell_height + border);
    for (int y = 0; y < image.height; ++y) {
      std::copy_n(image.pixels.begin() + static_cast<ptrdiff_t>(y) * image.width * 3, image.width * 3,
                  result.pixels.begin() + (static_cast<ptrdiff_t>(top + y) * result.width + left) * 3);
    }
  }
  return result;
}

}  // namespace flowshard::image
