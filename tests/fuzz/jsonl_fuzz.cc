// Rows of data, of every kind.
#include "core/tasks/jsonl_data.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  for (const tasks::RowKind kind : {tasks::RowKind::kRl, tasks::RowKind::kSft, tasks::RowKind::kPair}) {
    const auto rows = tasks::JsonlData::Parse(std::string(fuzz::View(data, size)), "input",
                                              {.kind = kind, .max_bad_fraction = 0.9});
    if (!rows.ok()) continue;
    for (int64_t i = 0; i < rows->size(); ++i) (void)rows->Row(i);
  }
  return 0;
}
