package config

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
)

// maxFileBytes bounds the configuration file. A larger one is some other file,
// and the YAML parser's cost grows faster than its input.
const maxFileBytes = 64 << 10

// Load reads the configuration: the defaults, over them the file at path ("" for
// none), over that the SIGNALBOX_ variables of env (as from os.Environ), over
// that overrides, which are flags by dotted key ("nats.embedded.listen"). Each
// problem found is an *Error that names its place and key; all of them are
// joined. The result of a Load without error has passed Validate.
func Load(path string, env []string, overrides map[string]string) (Config, error) {
	l := loader{config: Default(), places: map[string]place{}, bad: map[string]bool{}}
	if path != "" {
		l.loadFile(path)
	}
	l.loadEnv(env)
	l.loadFlags(overrides)
	l.validate()
	if len(l.problems) > 0 {
		return Config{}, join(l.sorted())
	}
	return l.config, nil
}

// place is where a value was written. A later layer overrides an earlier one.
type place struct {
	layer int
	name  string // file, variable or flag
	line  int
}

const (
	layerFile = iota + 1
	layerEnv
	layerFlag
)

type loader struct {
	config   Config
	places   map[string]place // by key, entries of lists included
	bad      map[string]bool  // keys whose value could not be read
	problems []located
}

type located struct {
	place
	err *Error
}

func (l *loader) fail(p place, key, problem, hint string) {
	l.bad[key] = true
	l.add(p, &Error{Key: key, Problem: problem, Hint: hint})
}

func (l *loader) add(p place, e *Error) {
	e.File, e.Line = p.name, p.line
	l.problems = append(l.problems, located{p, e})
}

// set notes where a key's value comes from; a list replaces its earlier entries.
func (l *loader) set(p place, key string) {
	maps.DeleteFunc(l.places, func(k string, _ place) bool { return strings.HasPrefix(k, key+"[") })
	l.places[key] = p
}

func (l *loader) loadFile(path string) {
	p := place{layer: layerFile, name: path}
	text, err := readBounded(path)
	if err != nil {
		l.add(p, &Error{Problem: "cannot be read: " + causeText(err), Hint: "name a readable file, or none to use the defaults", cause: err})
		return
	}
	if len(text) > maxFileBytes {
		l.fail(p, "", "is larger than 64 KiB", "is this the right file?")
		return
	}
	r := reader{loader: l, place: p}
	r.document(strings.TrimPrefix(string(text), "\ufeff"))
}

func readBounded(path string) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}

// causeText leaves out the operation and the path, which the place says.
func causeText(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// text takes the value of a key from a variable or a flag.
func (l *loader) text(p place, f leaf, value string) {
	r := reader{loader: l, place: p, inline: true}
	dst := reflect.ValueOf(&l.config).Elem().FieldByIndex(f.index)
	if f.typ.Kind() == reflect.Slice {
		r.inlineList(f, value, dst)
		return
	}
	l.set(p, f.key)
	if err := parseText(dst, f.tag, value); err != nil {
		r.mistaken(p, f.key, err)
	}
}

// validate adds what is wrong with readable values, each at the place where the
// most recent of the keys involved was set. Keys that could not be read keep
// their default, about which there is nothing to say.
func (l *loader) validate() {
	for _, e := range l.config.problems() {
		keys := append([]string{e.Key}, e.related...)
		if slices.ContainsFunc(keys, l.unread) {
			continue
		}
		var at place
		for _, k := range keys {
			if p := l.placeOf(k); p.layer > at.layer {
				at, e.Key = p, k
			}
		}
		l.add(at, e)
	}
}

// unread reports whether a key, or the list it is in, could not be read.
func (l *loader) unread(key string) bool {
	for ; key != ""; key = parent(key) {
		if l.bad[key] {
			return true
		}
	}
	return false
}

// placeOf is where a key was set, or else the list entry or list it is in.
func (l *loader) placeOf(key string) place {
	for ; key != ""; key = parent(key) {
		if p, ok := l.places[key]; ok {
			return p
		}
	}
	return place{}
}

// parent is a key without its last part: roles.kinds[0].name, roles.kinds[0],
// roles.kinds, roles.
func parent(key string) string {
	return key[:max(0, strings.LastIndexAny(key, ".["))]
}

// sorted puts flags first and the file last, each in its own order: what was
// typed last is looked at first.
func (l *loader) sorted() []*Error {
	slices.SortStableFunc(l.problems, func(a, b located) int {
		return cmp.Or(cmp.Compare(b.layer, a.layer), cmp.Compare(a.line, b.line))
	})
	list := make([]*Error, len(l.problems))
	for i, p := range l.problems {
		list[i] = p.err
	}
	return list
}
