package config

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Key describes one key of the configuration, for documentation and completion.
type Key struct {
	// Name is the dotted key, such as bus.max_age.
	Name string
	// Env is the environment variable that overrides it.
	Env string
	// Flag is the command-line flag that overrides it, without dashes; empty for
	// keys that have no flag of their own.
	Flag string
	// Kind is what a value is: text, boolean, number, whole number, duration,
	// interval, size, switch or list.
	Kind string
	// Default is the default as it stands in a configuration file; lists are YAML
	// flow text.
	Default string
	// Min and Max are the inclusive limits; both empty where there are none.
	Min, Max string
	// OneOf lists the allowed words; empty where the text is free.
	OneOf []string
	// Doc is the first sentence of the key's docstring.
	Doc string
}

// Keys lists all keys in the order of the struct. Keys of list entries
// (roles.kinds[].name) are described by the docstring of the list.
func Keys() []Key {
	docs := docstrings()
	defaults := reflect.ValueOf(Default())
	var keys []Key
	for _, l := range leaves() {
		k := Key{Name: l.key, Env: l.env, Flag: l.tag.Get("flag"), Kind: kindOf(l.typ)}
		k.Default = show(defaults.FieldByIndex(l.index))
		k.Min, k.Max, _ = strings.Cut(l.tag.Get("range"), "..")
		if words := l.tag.Get("oneof"); words != "" {
			k.OneOf = strings.Split(words, "|")
		}
		k.Doc = docs[l.owner+"."+l.field]
		keys = append(keys, k)
	}
	return keys
}

// leaf is a key that holds a value rather than further keys.
type leaf struct {
	key, env     string
	owner, field string // the struct type and its field
	index        []int
	typ          reflect.Type
	tag          reflect.StructTag
}

var leaves = sync.OnceValue(func() []leaf {
	return appendLeaves(nil, reflect.TypeFor[Config](), "", nil)
})

func appendLeaves(list []leaf, t reflect.Type, prefix string, index []int) []leaf {
	for i := range t.NumField() {
		f := t.Field(i)
		key := prefix + yamlName(f)
		at := append(append([]int(nil), index...), i)
		if f.Type.Kind() == reflect.Struct {
			list = appendLeaves(list, f.Type, key+".", at)
			continue
		}
		list = append(list, leaf{
			key: key, env: envName(key), owner: t.Name(), field: f.Name,
			index: at, typ: f.Type, tag: f.Tag,
		})
	}
	return list
}

func yamlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

func leafByKey(key string) (leaf, bool) {
	for _, l := range leaves() {
		if l.key == key {
			return l, true
		}
	}
	return leaf{}, false
}

func leafKeys() []string {
	var keys []string
	for _, l := range leaves() {
		keys = append(keys, l.key)
	}
	return keys
}

// isSection reports whether key holds further keys.
func isSection(key string) bool {
	for _, l := range leaves() {
		if strings.HasPrefix(l.key, key+".") {
			return true
		}
	}
	return false
}

func kindOf(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Duration]():
		return "duration"
	case reflect.TypeFor[SyncInterval]():
		return "interval"
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[Switch]():
		return "switch"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "boolean"
	case reflect.Int:
		return "whole number"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list"
	}
	panic("config: no kind of key for " + t.String())
}

// show is a value as it stands in a configuration file.
func show(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case []Tap:
		var items []string
		for _, t := range x {
			if t.Subject != "" {
				items = append(items, strconv.Quote(t.Subject))
			} else {
				items = append(items, t.String())
			}
		}
		return "[" + strings.Join(items, ", ") + "]"
	case []RoleKind:
		var items []string
		for _, k := range x {
			items = append(items, fmt.Sprintf("{name: %s, scoped: %t, charter_version: %q, probe: %t}",
				k.Name, k.Scoped, k.CharterVersion, k.Probe))
		}
		return "[" + strings.Join(items, ", ") + "]"
	default:
		return fmt.Sprint(x)
	}
}

// The docstrings are the one description of each key, so Keys reads them from
// the source that the program was built from.
var (
	//go:embed config.go
	configSource string
	//go:embed sections.go
	sectionsSource string
)

var docstrings = sync.OnceValue(func() map[string]string {
	docs := map[string]string{}
	for _, source := range []string{configSource, sectionsSource} {
		file, err := parser.ParseFile(token.NewFileSet(), "", source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			panic("config: own source: " + err.Error())
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, name := range f.Names {
						docs[spec.Name.Name+"."+name.Name] = new(doc.Package).Synopsis(f.Doc.Text())
					}
				}
			}
			return false
		})
	}
	return docs
})
