package node

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
)

// natsContext is what we use of a context of the nats command line.
type natsContext struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password"`
	Token    string `json:"token"`
	Creds    string `json:"creds"`
	NKey     string `json:"nkey"`
	CA       string `json:"ca"`
	Cert     string `json:"cert"`
	Key      string `json:"key"`
	Inbox    string `json:"inbox_prefix"`
}

// connectContext reaches the server of a context that `nats context add` made.
func connectContext(name string, opts ...nats.Option) (*nats.Conn, error) {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(home, ".config")
	}
	raw, err := os.ReadFile(filepath.Join(dir, "nats", "context", name+".json"))
	if err != nil {
		return nil, fmt.Errorf("%w; `nats context ls` lists those that there are", err)
	}
	var c natsContext
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	if c.User != "" {
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	}
	if c.Token != "" {
		opts = append(opts, nats.Token(c.Token))
	}
	if c.Creds != "" {
		opts = append(opts, nats.UserCredentials(c.Creds))
	}
	if c.NKey != "" {
		key, err := nats.NkeyOptionFromSeed(c.NKey)
		if err != nil {
			return nil, err
		}
		opts = append(opts, key)
	}
	if c.CA != "" {
		opts = append(opts, nats.RootCAs(c.CA))
	}
	if c.Cert != "" {
		opts = append(opts, nats.ClientCert(c.Cert, c.Key))
	}
	if c.Inbox != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.Inbox))
	}
	return nats.Connect(c.URL, opts...)
}

// redact is a server's address without its password.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "the configured address"
	}
	return u.Redacted()
}
