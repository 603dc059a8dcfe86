package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// reader walks YAML and fills the configuration. It works on the syntax tree
// rather than through the decoder, because every problem has to be found, each
// with its line and its dotted key.
type reader struct {
	*loader
	place
	inline bool // the text is the value of a variable or flag: lines mean nothing
}

func (r *reader) at(n ast.Node) place {
	p := r.place
	if !r.inline && n != nil && n.GetToken() != nil {
		p.line = n.GetToken().Position.Line
	}
	return p
}

// document reads a whole configuration file.
func (r *reader) document(text string) {
	file, err := parseYAML(text)
	if err != nil {
		p, message := r.syntax(err)
		r.fail(p, enclosingKey(text, p.line), "is not valid YAML: "+message, "check quotes, brackets and indentation")
		return
	}
	seen := false
	for _, doc := range file.Docs {
		switch body := doc.Body.(type) {
		case nil:
		case *ast.MappingNode:
			if seen {
				r.fail(r.at(body), "", "a second document begins", "put everything into one document, without ---")
				return
			}
			seen = true
			r.section("", body, reflect.ValueOf(&r.config).Elem())
		default:
			r.fail(r.at(body), "", "holds "+describe(body)+" instead of keys", "write key: value lines as in config.yaml")
		}
	}
}

// inlineList reads a list from a variable or a flag.
func (r *reader) inlineList(f leaf, text string, dst reflect.Value) {
	r.set(r.place, f.key)
	file, err := parseYAML(text)
	if err != nil {
		_, message := r.syntax(err)
		r.fail(r.place, f.key, quote(text)+" is not valid YAML: "+message, listHint(f.typ))
		return
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		r.fail(r.place, f.key, quote(text)+" is not a list", listHint(f.typ))
		return
	}
	r.list(f.key, file.Docs[0].Body, dst)
}

// section reads a mapping into a struct.
func (r *reader) section(key string, n *ast.MappingNode, dst reflect.Value) {
	fields := map[string]int{}
	for i := range dst.NumField() {
		fields[yamlName(dst.Type().Field(i))] = i
	}
	first := map[string]place{}
	for _, pair := range n.Values {
		name := keyText(pair.Key)
		full := strings.TrimPrefix(key+"."+name, ".")
		at := r.at(pair.Key)
		i, known := fields[name]
		switch before, repeated := first[name]; {
		case repeated:
			r.fail(at, full, "is given twice"+earlier(before), "keep one of them")
			continue
		case !known || name == "-":
			r.unknown(at, full, key, fields)
			continue
		}
		first[name] = at
		r.value(full, pair.Value, dst.Field(i), dst.Type().Field(i).Tag)
	}
}

func earlier(p place) string {
	if p.line == 0 {
		return ""
	}
	return fmt.Sprintf(", first in line %d", p.line)
}

func (r *reader) unknown(at place, full, section string, fields map[string]int) {
	if strings.HasSuffix(section, "]") {
		var names []string
		for name := range fields {
			names = append(names, name)
		}
		hint := "an entry of roles.kinds has name, scoped, charter_version and probe"
		if best := nearest(full[len(section)+1:], names); best != "" {
			hint = "did you mean " + best + "?"
		}
		r.fail(at, full, "unknown key", hint)
		return
	}
	problem, hint := unknownKey(full)
	if _, exact := leafByKey(full); exact {
		hint = "write one level a line: the section, then its keys indented below it"
	}
	r.fail(at, full, problem, hint)
}

// keyText is a mapping's key as it was written; complex keys never match a field.
func keyText(k ast.MapKeyNode) string {
	switch k := k.(type) {
	case *ast.StringNode:
		return k.Value
	case *ast.MappingKeyNode:
		return "?"
	default:
		return k.GetToken().Value
	}
}

func (r *reader) value(key string, n ast.Node, dst reflect.Value, tag reflect.StructTag) {
	switch dst.Kind() {
	case reflect.Struct:
		switch n := n.(type) {
		case *ast.MappingNode:
			r.section(key, n, dst)
		case *ast.NullNode: // a section whose keys are all commented out
		default:
			r.fail(r.at(n), key, "is a section, but holds "+describe(n), "write its keys indented below it")
		}
	case reflect.Slice:
		r.list(key, n, dst)
	default:
		r.set(r.at(n), key)
		if err := parseNode(dst, tag, n); err != nil {
			r.mistaken(r.at(n), key, err)
		}
	}
}

// mistaken reports what a parser of values said.
func (r *reader) mistaken(p place, key string, err error) {
	var m mistake
	if !errors.As(err, &m) {
		m = mistake{problem: err.Error()}
	}
	r.fail(p, key, m.problem, m.hint)
}

func (r *reader) list(key string, n ast.Node, dst reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		r.fail(r.at(n), key, "is a list, but holds "+describe(n), listHint(dst.Type()))
		return
	}
	r.set(r.at(n), key)
	// An empty list is nil, so that [] equals the default.
	items := reflect.Zero(dst.Type())
	for i, entry := range seq.Values {
		item := reflect.New(dst.Type().Elem()).Elem()
		r.entry(fmt.Sprintf("%s[%d]", key, i), entry, item)
		items = reflect.Append(items, item)
	}
	dst.Set(items)
}

func (r *reader) entry(key string, n ast.Node, item reflect.Value) {
	r.places[key] = r.at(n)
	mapping, isMapping := n.(*ast.MappingNode)
	switch item := item.Addr().Interface().(type) {
	case *Tap:
		if s, ok := n.(*ast.StringNode); ok {
			item.Subject = s.Value
			if s.Value == "" {
				r.fail(r.at(n), key, "is empty", listHint(reflect.TypeFor[[]Tap]()))
			}
			return
		}
		if !isMapping || len(mapping.Values) != 1 || keyText(mapping.Values[0].Key) != "stream" {
			r.fail(r.at(n), key, "holds "+describe(n), listHint(reflect.TypeFor[[]Tap]()))
			return
		}
		r.section(key, mapping, reflect.ValueOf(item).Elem())
		if item.Stream == "" && !r.bad[key+".stream"] {
			r.fail(r.at(n), key+".stream", "is empty", "name an existing JetStream stream")
		}
	case *RoleKind:
		item.Probe = true
		if !isMapping {
			r.fail(r.at(n), key, "holds "+describe(n), listHint(reflect.TypeFor[[]RoleKind]()))
			return
		}
		r.section(key, mapping, reflect.ValueOf(item).Elem())
	}
}

func listHint(t reflect.Type) string {
	if t == reflect.TypeFor[[]Tap]() {
		return `write [] or a list of subjects and streams, such as ["svc.>", {stream: ORDERS}]`
	}
	return "write [] or a list of kinds, such as [{name: cto}, {name: lead, scoped: true}]"
}
