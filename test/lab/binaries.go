package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Paths holds the path of the binary of each component.
type Paths map[Component]string

// Binaries returns the binaries of all components, and builds those that are
// missing. If the environment variable KUBEBUILDER_ASSETS names a folder, the
// ones in it are used as they are. The others are kept in the user's cache
// folder under the hash of the nested module that pins them, so a build from
// nothing (minutes) happens once per version and machine, also when several
// processes ask at the same time. It reports a build on progress, one line at
// the start and then one every 15 seconds; nil keeps silent.
func Binaries(ctx context.Context, progress io.Writer) (Paths, error) {
	if progress == nil {
		progress = io.Discard
	}
	paths := assets(os.Getenv("KUBEBUILDER_ASSETS"))
	if len(paths) == len(Components()) {
		return paths, nil
	}
	folder, err := sourceFolder(ctx)
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("finding the cache folder for the lab's binaries: %w", err)
	}
	for _, s := range sources() {
		if s.providedBy(paths) {
			continue
		}
		key, err := s.key(folder)
		if err != nil {
			return nil, err
		}
		target := filepath.Join(cache, "lockstep-lab", s.name+"-"+key)
		if err := s.ensure(ctx, folder, target, progress); err != nil {
			return nil, err
		}
		for component := range s.packages {
			if paths[component] == "" {
				paths[component] = filepath.Join(target, string(component))
			}
		}
	}
	return paths, nil
}

// assets returns the components that a folder laid out like envtest's holds.
func assets(folder string) Paths {
	paths := Paths{}
	if folder == "" {
		return paths
	}
	for _, component := range Components() {
		path := filepath.Join(folder, string(component))
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			paths[component] = path
		}
	}
	return paths
}

// providedBy reports whether paths already has every component of the source.
func (s source) providedBy(paths Paths) bool {
	for component := range s.packages {
		if paths[component] == "" {
			return false
		}
	}
	return true
}

// components returns what the source builds, sorted by name.
func (s source) components() []Component {
	var names []Component
	for component := range s.packages {
		names = append(names, component)
	}
	slices.Sort(names)
	return names
}
