// Where the weights, the KV pool and the workspace live: two arenas per model, sized once.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace baton {

constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kLine = 64;

inline size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Zeroed memory from the kernel, 2 MiB-aligned and advised to be huge pages: a decode step reads all
// weights once, and with 4 KiB pages the page walks cost more than the reads.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    if (mapping_ != nullptr) munmap(mapping_, mapped_);
  }

  // Carving from an arena without memory only counts: carve once to measure, reserve, carve again.
  void reserve() {
    mapped_ = round_up(used_, kHugePage) + kHugePage;
    void* mapping = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    mapping_ = static_cast<uint8_t*>(mapping);
    base_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(mapping_), kHugePage));
    madvise(base_, round_up(used_, kHugePage), MADV_HUGEPAGE);
    used_ = 0;
  }

  template <class Element>
  Element* carve(size_t count) {
    Element* result = base_ == nullptr ? nullptr : reinterpret_cast<Element*>(base_ + used_);
    used_ += round_up(count * sizeof(Element), kLine);
    return result;
  }

  size_t used() const { return used_; }

 private:
  uint8_t* mapping_ = nullptr;
  uint8_t* base_ = nullptr;
  size_t mapped_ = 0;
  size_t used_ = 0;
};

}  // namespace baton
