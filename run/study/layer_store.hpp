#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace kvsim {

/// Scores of a layer, for records that rank across layers; or its replay.
enum class LayerPass { scores, replay };

/// What the finished layers of a study left behind, a file each, until the study is finished: a
/// run that is killed loses no more than the layer in work. A unit of a sweep cannot be kept
/// sooner, since the units of a group are replayed together and end with the last layer.
///
/// These files only save work: one that is damaged, or of another study, layer, program or
/// processor, is as good as none. They are written under another name and renamed, but not flushed
/// to the disk, which would take longer than many a layer: only a machine that loses power can tear
/// one, and the layer is then worked on again.
class LayerStore {
 public:
  /// `key` names everything the study's numbers depend on and begins the files' names; `device` is
  /// the one that computes, since last bits differ between them.
  LayerStore(std::string folder, std::string key, std::string device)
      : folder_(std::move(folder)), key_(std::move(key)), device_(std::move(device)) {}

  std::optional<std::string> load(LayerPass pass, int layer);
  void save(LayerPass pass, int layer, const std::string& state);
  /// Removes all that was loaded and saved.
  void clear();

 private:
  std::string name(LayerPass pass, int layer) const;
  std::string seal(const std::string& name, const std::string& state) const;

  std::string folder_;
  std::string key_;
  std::string device_;
  std::set<std::string> names_;  ///< of files that were loaded or saved
};

/// Removes the finished layers of these studies from a folder; their files' names begin with a key.
void remove_layers(const std::string& folder, const std::set<std::string>& keys);

}  // namespace kvsim
