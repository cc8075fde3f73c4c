#pragma once
// Template source to a tree. Grammar and precedence are jinja2's. Not supported, and refused by name:
// inheritance and inclusion (extends, block, include, import), recursive loops, *args and **kwargs.

#include <string_view>

#include "core/base/status.h"
#include "core/text/jinja/ast.h"

namespace tidepool::text::jinja {

// kInvalidArgument or kUnimplemented with the line; kResourceExhausted if nested too deep.
StatusOr<Block> Parse(std::string_view source);

}  // namespace tidepool::text::jinja
