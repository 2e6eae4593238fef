// Tests of layouts: what a text and its tensors become, and that no text, however damaged, is more than refused. Made
// to run under sanitizers.
#include <cstring>
#include <random>

#include "check.h"
#include "error.h"
#include "hosts/layout.h"

using namespace fusebert;

namespace {

const char* const kText =
    "encoder hidden=4 order=0,1,0,1\n"
    "attention heads=2 key_heads=1 scale=0.5 window=3 position=rotary\n"
    "norm before kind=rms epsilon=1e-05\n"
    "norm query_norm kind=rms epsilon=1e-06\n"
    "feed_forward activation=silu\n"
    "norm after kind=layer epsilon=1e-05\n"
    "final kind=layer epsilon=1e-12\n"
    "input block.0.query.weight\n"
    "input block.0.key.kernel\n"
    "input block.0.value.weight\n"
    "input block.0.value.scales\n"
    "input block.0.out.weight\n"
    "input block.0.before.gain\n"
    "input block.0.query_norm.gain\n"
    "input block.0.position.frequencies\n"
    "input block.1.up.weight\n"
    "input block.1.up.bias\n"
    "input block.1.gate.weight\n"
    "input block.1.down.weight\n"
    "input final.gain\n";

// Tensors that fit kText, with numbers that tell them apart.
struct Tensors {
  std::vector<std::vector<float>> floats{13, std::vector<float>(64)};
  std::vector<HostTensor> given;
  int8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};

  Tensors() {
    const std::vector<std::vector<int64_t>> shapes{{4, 4}, {4, 2}, {2, 4}, {2},    {4, 4}, {4}, {2},
                                                   {1},    {6, 4}, {6},    {6, 4}, {4, 6}, {4}};
    for (size_t i = 0; i < shapes.size(); ++i) {
      floats[i].assign(64, static_cast<float>(i) + 0.5f);
      given.push_back({floats[i].data(), FB_F32, shapes[i]});
    }
    given[2] = {bytes, FB_S8, {2, 4}};
  }
  auto read() const {
    return [this](size_t i) { return given.at(i); };
  }
};

template <class F>
bool refused(const char* reason, const F& f) {
  try {
    f();
  } catch (const Invalid& error) {
    if (std::strstr(error.what(), reason)) return true;
    std::printf("refused, but: %s\n", error.what());
  }
  return false;
}

std::string with(const std::string& was, const std::string& now) {
  std::string text = kText;
  const size_t at = text.find(was);
  CHECK(at != std::string::npos);
  return text.replace(at, was.size(), now);
}

void test_a_text_becomes_blocks() {
  const Layout layout = read_layout(kText);
  CHECK(layout.hidden == 4 && layout.order == (std::vector<int32_t>{0, 1, 0, 1}));
  CHECK(layout.layer_ends() == (std::vector<int32_t>{1, 3}) && layout.heads() == 2);
  CHECK(layout.blocks.size() == 2 && layout.inputs.size() == 13);

  const Tensors tensors;
  const LaidOut made(layout, tensors.read());
  const BlockParts &attention = made.blocks.at(0), &forward = made.blocks.at(1);
  CHECK(made.int8 && made.final && made.final->gain == tensors.floats[12].data() && !made.final->bias);
  CHECK(attention.attention.heads == 2 && attention.attention.key_heads == 1 && attention.attention.window == 3);
  CHECK(attention.attention.position && attention.position.kind == FB_ROTARY && attention.position.count == 1);
  const fb_matrix &query = *attention.attention.query->weight, &key = *attention.attention.key->weight;
  CHECK(query.rows == 4 && query.columns == 4 && query.row_stride == 4 && query.column_stride == 1);
  CHECK(key.rows == 2 && key.columns == 4 && key.row_stride == 1 && key.column_stride == 2);
  CHECK(attention.attention.value->weight->scales == tensors.floats[3].data());
  CHECK(forward.feed_forward.gate && forward.feed_forward.up->bias == tensors.floats[9].data());
  CHECK(std::string(fb_activation_name(forward.feed_forward.activation)) == "silu");
}

void test_texts_that_are_wrong_are_refused_with_the_line() {
  const auto read = [](const std::string& text) { return [text] { read_layout(text); }; };
  CHECK(refused("no line 'encoder'", read("")));
  CHECK(refused("no blocks", read("encoder hidden=4\n")));
  CHECK(refused("stands before the line 'encoder'", read("attention heads=1\n")));
  CHECK(refused("line 2 of the layout ('attention') needs heads", read(with("heads=2", "heads=0"))));
  CHECK(refused("needs heads", read(with("heads=2", "heads=99999999999999999999"))));
  CHECK(refused("needs heads", read(with("heads=2", "heads=two"))));
  CHECK(refused("needs scale", read(with("scale=0.5", "scale=nan"))));
  CHECK(refused("scale other than 0", read(with("scale=0.5", "scale=0"))));
  CHECK(refused("position 'spiral' is unknown", read(with("rotary", "spiral"))));
  CHECK(refused("activation 'elu' is unknown", read(with("silu", "elu"))));
  CHECK(refused("epsilon", read(with("epsilon=1e-05", "epsilon=inf"))));
  CHECK(refused("where a block has no norm", read(with("norm after", "norm query_norm"))));
  CHECK(refused("a second time", read(with("norm query_norm", "norm before"))));
  CHECK(refused("a second time", read(with("heads=2", "heads=2 heads=2"))));
  CHECK(refused("means nothing there", read(with("activation=silu", "activation=silu heads=3"))));
  CHECK(refused("order names block 2 of 2", read(with("order=0,1,0,1", "order=0,2"))));
  CHECK(refused("there twice", read(with("final", "encoder"))));
  CHECK(refused("kind that is unknown", read(with("final", "finally"))));
  CHECK(refused("at most", read(std::string(size_t{5} << 20, '\n'))));
}

void test_tensors_that_do_not_fit_are_refused_by_name() {
  const auto lay = [](const std::string& text, size_t which, HostTensor tensor) {
    return [=] {
      Tensors tensors;
      if (which < tensors.given.size()) tensors.given[which] = tensor;
      const LaidOut made(read_layout(text), tensors.read());
    };
  };
  const float numbers[64] = {};
  const HostTensor same = Tensors().given[0];
  CHECK(refused("block.1.up.bias has 5 elements, not 6", lay(kText, 9, {numbers, FB_F32, {5}})));
  CHECK(refused("block.0.query.weight has 3 dimensions, not 2", lay(kText, 0, {numbers, FB_F32, {2, 2, 4}})));
  CHECK(refused("block.0.before.gain is not float32", lay(kText, 5, {numbers, FB_S8, {4}})));
  CHECK(refused("has a size of -1", lay(kText, 0, {numbers, FB_F32, {-1, 4}})));
  CHECK(refused("is int8 and has no scales", lay(with("value.scales", "value.bias"), 99, same)));
  CHECK(refused("none of its blocks reads", lay(with("final.gain", "final.shift"), 99, same)));
  CHECK(refused("two inputs", lay(with("block.0.out.weight", "block.0.query.weight"), 99, same)));
  CHECK(refused("a weight and a kernel", lay(with("block.0.out.weight", "block.0.query.kernel"), 99, same)));
  CHECK(refused("a row per head", lay(with("position=rotary", "position=relative"), 99, same)));
}

// Whatever a text says, it becomes a layout or is refused; sanitizers see the rest.
void test_damaged_texts() {
  std::mt19937 random(7);
  const std::string sound = kText, alphabet = " =\n,.-0129eabh\0\xff";
  const Tensors tensors;
  int read = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = sound;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0) text.erase(at, 1 + random() % 9);
      if (random() % 3 == 0) text.insert(at, text.substr(random() % text.size(), random() % 40));
      if (random() % 2 == 0 && at < text.size()) text[at] = alphabet[random() % alphabet.size()];
      if (text.empty()) text = "\n";
    }
    try {
      const LaidOut made(read_layout(text), [&](size_t n) { return tensors.given[n % tensors.given.size()]; });
      ++read;
    } catch (const Invalid& error) {
      CHECK(std::strlen(error.what()) > 10 && !std::strchr(error.what(), '\n'));
    }
  }
  CHECK(read > 0 && read < 3000);
}

}  // namespace

int main() {
  test_a_text_becomes_blocks();
  test_texts_that_are_wrong_are_refused_with_the_line();
  test_tensors_that_do_not_fit_are_refused_by_name();
  test_damaged_texts();
  return verdict();
}
