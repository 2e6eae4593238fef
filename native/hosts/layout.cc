#include "layout.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "error.h"
#include "halves.h"
#include "settings.h"

namespace fusebert {
namespace {

constexpr size_t kMostBytes = size_t{1} << 22, kMostBlocks = size_t{1} << 16;
constexpr int32_t kMostHeads = 1 << 16, kFarthest = 1 << 24;
constexpr int64_t kWidest = int64_t{1} << 24;
constexpr std::string_view kNorms[] = {"before", "branch", "after"}, kHeadNorms[] = {"query_norm", "key_norm"};

// Somebody else's text, fit to be repeated in a sentence.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 60;
  std::string made(text.substr(0, kMost));
  std::replace_if(made.begin(), made.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return made + (text.size() > kMost ? "..." : "");
}

// The part before a separator, which is taken away from the text with it.
std::string_view take(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

// One line: its first word, perhaps a name, and values by name, each of which must be asked for.
class Line {
 public:
  Line(std::string_view text, size_t number) : number_(number) {
    kind_ = take(text, ' ');
    while (!text.empty()) {
      std::string_view word = take(text, ' ');
      const bool given = word.find('=') != std::string_view::npos;
      const std::string_view name = given ? take(word, '=') : std::string_view();
      if (!values_.emplace(name, word).second) refuse("says '" + shown(given ? name : word) + "' a second time");
    }
  }

  std::string_view kind() const { return kind_; }
  std::string name() {
    if (const auto given = next("")) return std::string(*given);
    refuse("needs a name");
  }
  std::optional<std::string_view> next(std::string_view key) {
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    const std::string_view value = found->second;
    values_.erase(found);
    return value;
  }
  int32_t whole(std::string_view key, int32_t low, int32_t high, std::optional<int32_t> missing = std::nullopt) {
    const auto given = next(key);
    if (!given && missing) return *missing;
    return number<int32_t>(key, given, low, high);
  }
  float real(std::string_view key, double low, double high) {
    return static_cast<float>(number<double>(key, next(key), low, high));
  }
  // The number of a name, which name_of gives.
  int32_t choice(std::string_view key, const char* (*name_of)(int32_t)) {
    const auto given = next(key);
    if (!given) return 0;
    for (int32_t i = 0; name_of(i); ++i)
      if (*given == name_of(i)) return i;
    refuse(std::string(key) + " '" + shown(*given) + "' is unknown");
  }
  std::vector<int32_t> wholes(std::string_view key, int32_t high) {
    std::vector<int32_t> values;
    auto given = next(key);
    while (given && !given->empty()) values.push_back(number<int32_t>(key, take(*given, ','), 0, high));
    return values;
  }
  // When everything was asked for.
  void end() const {
    if (!values_.empty()) {
      const auto& [name, value] = *values_.begin();
      refuse("has '" + shown(name.empty() ? value : name) + "', which means nothing there");
    }
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Invalid("line %zu of the layout ('%s') %s", number_, shown(kind_).c_str(), what.c_str());
  }

 private:
  template <class T>
  T number(std::string_view key, std::optional<std::string_view> given, T low, T high) const {
    T value{};
    const char* const end = given ? given->data() + given->size() : nullptr;
    const bool read = given && std::from_chars(given->data(), end, value) == std::from_chars_result{end, std::errc()};
    if (!read || !(value >= low && value <= high)) {
      char range[64];
      std::snprintf(range, sizeof range, "%.8g to %.8g", static_cast<double>(low), static_cast<double>(high));
      refuse("needs " + std::string(key) + " from " + range + ", not '" + shown(given.value_or("nothing")) + "'");
    }
    return value;
  }

  size_t number_;
  std::string_view kind_;
  std::map<std::string_view, std::string_view> values_;
};

Layout::Norm read_norm(Line& line) { return {line.choice("kind", fb_norm_name), line.real("epsilon", 0, 1)}; }

Layout::Block read_block(Line& line, BodyKind body) {
  Layout::Block block;
  block.body = body;
  block.adds_twice = line.whole("adds_twice", 0, 1, 0) != 0;
  if (body == BodyKind::feed_forward) {
    block.activation = line.choice("activation", fb_activation_name);
    return block;
  }
  block.heads = line.whole("heads", 1, kMostHeads);
  block.key_heads = line.whole("key_heads", 1, kMostHeads);
  block.scale = line.real("scale", -3e38, 3e38);
  if (block.scale == 0) line.refuse("needs a scale other than 0");
  block.window = line.whole("window", 1, 1 << 30, 0);
  block.position = line.choice("position", fb_position_name);
  if (block.position == FB_DISENTANGLED) {
    block.buckets = line.whole("buckets", 0, kFarthest, 0);
    block.reach = line.whole("reach", 1, kFarthest);
  }
  return block;
}

void add_norm(Line& line, Layout& layout) {
  if (layout.blocks.empty()) line.refuse("stands before any block");
  const std::string name = line.name();
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  Layout::Block& block = layout.blocks.back();
  if (!among(kNorms) && !(block.body == BodyKind::attention && among(kHeadNorms)))
    line.refuse("is of '" + shown(name) + "', where a block has no norm");
  if (!block.norms.emplace(name, read_norm(line)).second) line.refuse("names '" + name + "' a second time");
}

void add_line(Line& line, Layout& layout) {
  const std::string_view kind = line.kind();
  if (layout.hidden == 0 && kind != "encoder") line.refuse("stands before the line 'encoder'");
  if (kind == "encoder") {
    if (layout.hidden) line.refuse("is there twice");
    layout.hidden = line.whole("hidden", 1, static_cast<int32_t>(kWidest));
    layout.order = line.wholes("order", static_cast<int32_t>(kMostBlocks));
  } else if (kind == "attention" || kind == "feed_forward") {
    if (layout.blocks.size() == kMostBlocks) line.refuse("is a block too many");
    layout.blocks.push_back(read_block(line, kind == "attention" ? BodyKind::attention : BodyKind::feed_forward));
  } else if (kind == "norm") {
    add_norm(line, layout);
  } else if (kind == "final") {
    if (layout.final) line.refuse("is there twice");
    layout.final = read_norm(line);
  } else if (kind == "input") {
    layout.inputs.push_back(line.name());
  } else {
    line.refuse("is of a kind that is unknown");
  }
  line.end();
}

}  // namespace

Layout read_layout(std::string_view text) {
  if (text.size() > kMostBytes)
    throw Invalid("the layout has %zu bytes; at most %zu are read", text.size(), kMostBytes);
  Layout layout;
  for (size_t number = 1; !text.empty(); ++number)
    if (const std::string_view words = take(text, '\n'); !words.empty()) {
      Line line(words, number);
      add_line(line, layout);
    }
  if (layout.hidden == 0) throw Invalid("the layout has no line 'encoder'");
  if (layout.blocks.empty()) throw Invalid("the layout has no blocks");
  if (layout.order.empty()) {
    layout.order.resize(layout.blocks.size());
    std::iota(layout.order.begin(), layout.order.end(), 0);
  }
  if (layout.order.size() > kMostBlocks)
    throw Invalid("the layout's order names %zu blocks; at most %zu are run", layout.order.size(), kMostBlocks);
  for (const int32_t block : layout.order)
    if (static_cast<size_t>(block) >= layout.blocks.size())
      throw Invalid("the layout's order names block %d of %zu", block, layout.blocks.size());
  return layout;
}

std::vector<int32_t> Layout::layer_ends() const {
  std::vector<int32_t> ends;
  bool begun = false;
  for (size_t place = 0; place < order.size(); ++place) {
    const bool begins = blocks[static_cast<size_t>(order[place])].body == BodyKind::attention;
    if (begins && begun) ends.push_back(static_cast<int32_t>(place) - 1);
    begun |= begins;
  }
  if (begun) ends.push_back(static_cast<int32_t>(order.size()) - 1);
  return ends;
}

int64_t Layout::heads() const {
  int64_t heads = 0;
  for (const Block& block : blocks)
    if (block.body == BodyKind::attention) heads = heads == 0 || heads == block.heads ? block.heads : 1;
  return std::max<int64_t>(heads, 1);
}

// ---- the blocks ----

// What BlockParts asks for the parts of one block.
struct LaidOut::Source {
  LaidOut& own;
  const Layout& layout;
  const Layout::Block& form;
  const std::string& path;

  std::optional<LinearParts> linear(const char* name) { return own.linear(path + name); }
  std::optional<fb_norm> norm(const char* name) {
    const auto found = form.norms.find(name);
    if (found == form.norms.end()) return std::nullopt;
    const bool whole = std::find(std::begin(kNorms), std::end(kNorms), name) != std::end(kNorms);
    return own.norm(path + name, found->second, whole ? layout.hidden : 0);
  }
};

LaidOut::LaidOut(const Layout& layout, const std::function<HostTensor(size_t)>& tensor) {
  for (size_t i = 0; i < layout.inputs.size(); ++i)
    if (!tensors_.emplace(layout.inputs[i], std::pair(tensor(i), false)).second)
      throw Invalid("the layout names two inputs '%s'", shown(layout.inputs[i]).c_str());
  for (size_t i = 0; i < layout.blocks.size(); ++i) {
    const Layout::Block& form = layout.blocks[i];
    const std::string path = "block." + std::to_string(i) + ".";
    Source source{*this, layout, form, path};
    BlockParts& parts = blocks.emplace_back(form.body, source);
    parts.block.adds_twice = form.adds_twice;
    parts.feed_forward.activation = form.activation;
    if (form.body == BodyKind::attention) place(form, path, parts);
  }
  if (layout.final) final = norm("final", *layout.final, layout.hidden);
  for (const auto& [name, entry] : tensors_)
    if (!entry.second)
      throw Invalid("the layout has an input '%s', which none of its blocks reads", shown(name).c_str());
}

void LaidOut::place(const Layout::Block& form, const std::string& path, BlockParts& parts) {
  parts.attention.heads = form.heads, parts.attention.key_heads = form.key_heads;
  parts.attention.scale = form.scale, parts.attention.window = form.window;
  if (form.position == FB_NO_POSITION) return;
  if (!parts.attention.query) throw Invalid("the layout has no input '%squery.weight'", path.c_str());
  fb_position& position = parts.position;
  parts.attention.position = &position;
  position.kind = form.position;
  const auto table = [&](const char* name, size_t rank) {
    Vector found = floats(path + "position." + name);
    if (found.data && found.shape.size() != rank)
      throw Invalid("%sposition.%s has %zu dimensions, not %zu", path.c_str(), name, found.shape.size(), rank);
    return found;
  };
  if (form.position == FB_ROTARY) {
    const Vector frequencies = table("frequencies", 1);
    position.table[0] = frequencies.data;
    position.count = frequencies.data ? frequencies.shape[0] : 0;
  } else if (form.position == FB_RELATIVE) {
    const Vector given = table("table", 2);
    if (!given.data || given.shape[0] != form.heads || given.shape[1] % 2 == 0)
      throw Invalid("%sposition.table needs a row per head and an odd number of columns", path.c_str());
    position.table[0] = given.data, position.reach = given.shape[1] / 2;
  } else {
    position.buckets = form.buckets, position.reach = form.reach;
    const char* const names[] = {"content_to_position", "position_to_content"};
    for (int i = 0; i < 2; ++i) {
      const Vector given = table(names[i], 2);
      if (!given.data) continue;
      if (given.shape[1] != parts.attention.query->weight->rows || (position.count && position.count != given.shape[0]))
        throw Invalid("%sposition: its tables have the width of all queries, and as many rows each", path.c_str());
      position.table[i] = given.data, position.count = given.shape[0];
    }
  }
}

const HostTensor* LaidOut::find(const std::string& name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return nullptr;
  found->second.second = true;
  const HostTensor& tensor = found->second.first;
  for (const int64_t size : tensor.shape)
    if (size < 0 || size > kWidest) throw Invalid("%s has a size of %lld", name.c_str(), static_cast<long long>(size));
  const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  return empty ? nullptr : &tensor;
}

// Floats of any type and shape; none where there are none.
LaidOut::Vector LaidOut::floats(const std::string& name) {
  const HostTensor* const tensor = find(name);
  if (!tensor) return {};
  if (tensor->type == FB_F32) return {static_cast<const float*>(tensor->data), tensor->shape};
  if (tensor->type != FB_F16 && tensor->type != FB_BF16)
    throw Invalid("%s is not float32, float16 or bfloat16", name.c_str());
  const auto count = std::accumulate(tensor->shape.begin(), tensor->shape.end(), int64_t{1}, std::multiplies<>());
  const auto* halves = static_cast<const uint16_t*>(tensor->data);
  auto& made = converted_.emplace_back(std::make_unique<float[]>(static_cast<size_t>(count)));
  std::transform(halves, halves + count, made.get(), tensor->type == FB_F16 ? half_value : bf16_value);
  return {made.get(), tensor->shape};
}

const float* LaidOut::vector(const std::string& name, int64_t size) {
  const Vector found = floats(name);
  const auto count = std::accumulate(found.shape.begin(), found.shape.end(), int64_t{1}, std::multiplies<>());
  if (found.data && count != size)
    throw Invalid("%s has %lld elements, not %lld", name.c_str(), static_cast<long long>(count),
                  static_cast<long long>(size));
  return found.data;
}

std::optional<LinearParts> LaidOut::linear(const std::string& path) {
  const HostTensor *const weight = find(path + ".weight"), *const kernel = find(path + ".kernel");
  if (!weight && !kernel) return std::nullopt;
  if (weight && kernel) throw Invalid("%s has a weight and a kernel; one of them is enough", path.c_str());
  const HostTensor& given = weight ? *weight : *kernel;
  if (given.shape.size() != 2)
    throw Invalid("%s.%s has %zu dimensions, not 2", path.c_str(), weight ? "weight" : "kernel", given.shape.size());
  const int64_t outputs = given.shape[weight ? 0 : 1], inputs = given.shape[weight ? 1 : 0];
  LinearParts parts;
  parts.weight = {sizeof(fb_matrix),   given.type,           given.data, outputs, inputs,
                  weight ? inputs : 1, weight ? 1 : outputs, nullptr};
  if (given.type == FB_S8) {
    int8 = true;
    parts.weight.scales = vector(path + ".scales", outputs);
    if (!parts.weight.scales) throw Invalid("%s is int8 and has no scales", path.c_str());
  }
  parts.linear.bias = vector(path + ".bias", outputs);
  parts.linear.input_scales = vector(path + ".input_scales", inputs);
  return parts;
}

// Of a width, or as wide as its numbers.
fb_norm LaidOut::norm(const std::string& path, const Layout::Norm& form, int64_t width) {
  for (const char* field : {".gain", ".bias"})
    if (const auto found = tensors_.find(path + field); width == 0 && found != tensors_.end()) {
      const std::vector<int64_t>& shape = found->second.first.shape;
      width = shape.size() == 1 ? std::min(shape[0], kWidest) : 0;
    }
  fb_norm made{sizeof(fb_norm), form.kind, nullptr, nullptr, form.epsilon, static_cast<int32_t>(width)};
  made.gain = vector(path + ".gain", width), made.bias = vector(path + ".bias", width);
  return made;
}

}  // namespace fusebert
