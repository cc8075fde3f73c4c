#include "core/model/block_layout.h"

#include <utility>

#include "core/base/check.h"
#include "core/device/cpu/kernels.h"

namespace tidepool::model {

BlockLayout LayoutInBlocks(const ModelSpec& spec, DType dtype, std::vector<device::BlockType> types) {
  const std::vector<Parameter> layout = Layout(spec);
  TP_CHECK(types.size() == layout.size()) << types.size() << " types of " << layout.size() << " parameters";
  BlockLayout blocks{.types = std::move(types), .at = {}, .bytes = 0};
  for (size_t i = 0; i < layout.size(); ++i) {
    const Parameter& p = layout[i];
    const device::BlockType type = blocks.types[i];
    TP_CHECK(type == device::BlockType::kNone || CanBeBlocks(p)) << p.name << " in blocks";
    blocks.at.push_back(blocks.bytes);
    const int64_t bytes = type == device::BlockType::kNone
                              ? p.numel() * Bytes(dtype)
                              : device::BlockRowBytes(type, p.shape[0], p.numel() / p.shape[0]);
    blocks.bytes += (bytes + 63) / 64 * 64;
  }
  return blocks;
}

bool CanBeBlocks(const Parameter& p) {
  const bool read = p.product_rows > 0 || p.name == "embedding";
  return read && p.shape.size() == 2 && p.shape[1] % device::kBlockValues == 0 &&
         p.product_rows % device::kStripRows == 0;
}

}  // namespace tidepool::model
