#include "ranges.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <limits>
#include <locale>
#include <map>
#include <sstream>

#include "error.h"

namespace fusebert {
namespace {

// Ranges that hold nothing yet: every low above every high.
std::vector<float> nothing_seen(size_t layers) {
  std::vector<float> ranges(layers * kLayerRanges, std::numeric_limits<float>::infinity());
  for (size_t i = 1; i < ranges.size(); i += 2) ranges[i] = -ranges[i];
  return ranges;
}

void widen(float* range, float low, float high) {
  range[0] = std::min(range[0], low);
  range[1] = std::max(range[1], high);
}

}  // namespace

std::vector<float> read_ranges(const std::string& path, size_t layers) {
  std::ifstream file(path);
  if (!file) throw FileError{errno, "the quantisation factors " + path + " cannot be read"};
  file.imbue(std::locale::classic());
  std::vector<float> ranges;
  for (float value; ranges.size() < layers * kLayerRanges && file >> value;) ranges.push_back(value);
  check_ranges(ranges, layers, "the quantisation factors " + path);
  return ranges;
}

void check_ranges(const std::vector<float>& ranges, size_t layers, const std::string& from) {
  if (ranges.size() != layers * kLayerRanges)
    throw Invalid("%s hold %zu numbers, but %zu layers need %zu", from.c_str(), ranges.size(), layers,
                  layers * kLayerRanges);
  for (size_t i = 0; i < ranges.size(); i += 2)
    if (!std::isfinite(ranges[i]) || !std::isfinite(ranges[i + 1]) || ranges[i] > ranges[i + 1])
      throw Invalid("%s: %g to %g, of layer %zu, is no range", from.c_str(), ranges[i], ranges[i + 1],
                    i / kLayerRanges);
}

void write_ranges(const std::string& path, const std::vector<float>& ranges) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << std::setprecision(9);
  for (size_t i = 0; i < ranges.size(); ++i)
    text << std::setw(11) << ranges[i] << ((i + 1) % kLayerRanges ? ' ' : '\n');

  const std::string part = path + "." + std::to_string(getpid()) + ".part", content = text.str();
  std::FILE* const file = std::fopen(part.c_str(), "w");
  bool good = file && std::fwrite(content.data(), 1, content.size(), file) == content.size();
  good = good && std::fflush(file) == 0 && fsync(fileno(file)) == 0;
  int number = errno;
  if (file && std::fclose(file) != 0 && good) good = false, number = errno;
  if (good && std::rename(part.c_str(), path.c_str()) != 0) good = false, number = errno;
  if (good) return;
  std::remove(part.c_str());
  throw FileError{number, "the quantisation factors " + path + " cannot be written"};
}

std::shared_ptr<Calibration> Calibration::of(const std::string& path, size_t layers) {
  static std::mutex& mutex = *new std::mutex;
  static auto& known = *new std::map<std::string, std::weak_ptr<Calibration>>;
  std::lock_guard lock(mutex);
  auto found = known[path].lock();
  if (!found) known[path] = found = std::shared_ptr<Calibration>(new Calibration(path, layers));
  if (found->ranges_.size() != layers * kLayerRanges)
    throw Invalid("another encoder, of %zu layers, is being calibrated into %s", found->ranges_.size() / 8,
                  path.c_str());
  return found;
}

Calibration::Calibration(std::string path, size_t layers) : path_(std::move(path)), ranges_(nothing_seen(layers)) {}

void Calibration::add(const Watch& watch) {
  if (watch.broken_) throw Invalid("calibration: an input of a product is infinite or not a number");
  if (watch.ranges_ == nothing_seen(watch.ranges_.size() / kLayerRanges)) return;  // an empty batch
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < ranges_.size(); i += 2) widen(&ranges_[i], watch.ranges_[i], watch.ranges_[i + 1]);
  write_ranges(path_, ranges_);
}

Calibration::Watch::Watch(size_t layers) : observer_{sizeof(fb_observer), this, see}, ranges_(nothing_seen(layers)) {}

void Calibration::Watch::see(void* user, int32_t place, int32_t product, const float* data, int64_t rows,
                             int64_t width) {
  auto& watch = *static_cast<Watch*>(user);
  float* const range = &watch.ranges_[static_cast<size_t>(place) * kBlockRanges + 2 * static_cast<size_t>(product)];
  for (int64_t i = 0; i < rows * width; ++i) {
    widen(range, data[i], data[i]);
    watch.broken_ |= !std::isfinite(data[i]);
  }
}

}  // namespace fusebert
