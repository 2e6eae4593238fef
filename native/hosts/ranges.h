// Quantisation ranges: the lowest and highest input of the four products of every layer, as numbers and as a file.
//
// The file is text, 8 numbers per layer: low and high of qkv, attention_out, ffn_in, ffn_out. Calibration finds them:
// it watches fp32 runs and rewrites the file after each, by renaming, so that a reader never sees half of one.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fusebert.h"
#include "parts.h"

namespace fusebert {

// What went wrong with a file, and errno.
struct FileError {
  int number;
  std::string message;
};

// The first 8 numbers per layer; line breaks and what follows do not matter. Throws FileError, or Invalid.
std::vector<float> read_ranges(const std::string& path, size_t layers);
// The whole file at once. Throws FileError.
void write_ranges(const std::string& path, const std::vector<float>& ranges);
// Throws Invalid unless there are 8 finite numbers per layer, none of the lows above its high. `from` names them.
void check_ranges(const std::vector<float>& ranges, size_t layers, const std::string& from);

// The ranges that all calls with one file have seen, whichever kernel they ran in.
class Calibration {
 public:
  // The one that is under way for this file, or a new one. Throws Invalid if that has another number of layers.
  static std::shared_ptr<Calibration> of(const std::string& path, size_t layers);

  // What one call sees. Its observer may be used until it is destroyed.
  class Watch {
   public:
    explicit Watch(size_t layers);
    Watch(const Watch&) = delete;
    const fb_observer* observer() const { return &observer_; }

   private:
    friend class Calibration;
    static void see(void* watch, int32_t place, int32_t product, const float* data, int64_t rows, int64_t width);
    fb_observer observer_;
    std::vector<float> ranges_;
    bool broken_ = false;
  };

  // Adds what a call has seen, and writes the file. Throws FileError, or Invalid if something was not finite.
  void add(const Watch& watch);

 private:
  Calibration(std::string path, size_t layers);
  std::string path_;
  std::mutex mutex_;
  std::vector<float> ranges_;
};

}  // namespace fusebert
