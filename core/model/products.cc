#include "core/model/products.h"

namespace tidepool::model {

std::vector<device::ProductShape> ProductsOf(const ModelSpec& s) {
  const int64_t d = s.hidden_size, q = s.heads * s.head_size;
  std::vector<device::ProductShape> list = {{"qkv", q + 2 * s.kv_heads * s.head_size, d}, {"o", d, q}};
  if (s.sparse_layers() < s.layers) {
    list.push_back({"gate_up", 2 * s.intermediate_size, d});
    list.push_back({"down", d, s.intermediate_size});
  }
  if (s.sparse_layers() > 0) {
    const int64_t m = s.moe.intermediate_size, shared = s.moe.shared_intermediate_size;
    list.push_back({"experts_gate_up", 2 * m, d});
    list.push_back({"experts_down", d, m});
    if (shared > 0) {
      list.push_back({"shared_gate_up", 2 * shared, d});
      list.push_back({"shared_down", d, shared});
    }
  }
  if (!s.value_head) list.push_back({"head", s.vocab_size, d, /*head=*/true});
  return list;
}

}  // namespace tidepool::model
