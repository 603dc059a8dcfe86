package config

import (
	"errors"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Nesting is bounded before the parser sees the text: it recurses, and its
// memory grows with the square of the depth (60 KB of brackets fill a machine).
// The configuration itself is four deep.
const (
	maxFlowDepth   = 16
	maxBlockColumn = 100
)

// parseYAML is the syntax tree of text, or a yaml.Error. Repeated keys are left
// in it.
func parseYAML(text string) (*ast.File, error) {
	if len(text) > maxFileBytes {
		return nil, errors.New("it is larger than 64 KiB")
	}
	tokens := lexer.Tokenize(text)
	if t := tooDeep(tokens); t != nil {
		return nil, &yaml.SyntaxError{Message: "it is nested too deeply", Token: t}
	}
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// tooDeep is the first token beyond the bounds of nesting, or nil. A block's
// depth is at most the column of the token that opens it.
func tooDeep(tokens token.Tokens) *token.Token {
	depth, properties := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType:
			if depth <= 0 && t.Position.Column > maxBlockColumn {
				return t
			}
		case token.AnchorType, token.TagType, token.DirectiveType:
			properties++
		}
		if depth+properties > maxFlowDepth {
			return t
		}
	}
	return nil
}

// syntax is where and what a parser of YAML complained about.
func (r *reader) syntax(err error) (place, string) {
	p := r.place
	var y yaml.Error
	if !errors.As(err, &y) {
		return p, err.Error()
	}
	if t := y.GetToken(); t != nil && t.Position != nil && !r.inline {
		p.line = t.Position.Line
	}
	return p, y.GetMessage()
}

var keyLine = regexp.MustCompile(`^( *(?:- +)?)([A-Za-z_][A-Za-z0-9_]*) *:`)

// enclosingKey is the dotted key that a line of broken YAML is in, by its
// indentation, as far as that can be told.
func enclosingKey(text string, line int) string {
	lines := strings.Split(text, "\n")
	var parts []string
	indent := int(^uint(0) >> 1)
	for i := min(line, len(lines)) - 1; i >= 0 && indent > 0; i-- {
		m := keyLine.FindStringSubmatch(lines[i])
		if m == nil || len(m[1]) >= indent {
			continue
		}
		indent = len(m[1])
		parts = append([]string{m[2]}, parts...)
	}
	return strings.Join(parts, ".")
}
