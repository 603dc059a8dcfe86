package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// connection checks how the bridge reaches its NATS server and logs in.
func (k *check) connection() {
	n := k.config.NATS
	if n.URL != "" {
		if problem := urlProblem(n.URL); problem != "" {
			k.fail("nats.url", quote(redactURL(n.URL))+" "+problem, "write nats://host:4222, several with commas between them")
		}
	}
	if n.Creds != "" && n.NKey != "" {
		k.fail("nats.nkey", "nats.creds and nats.nkey are both set", "a connection logs in one way; keep one of them", "nats.creds")
	}
	if (n.TLS.Cert == "") != (n.TLS.Key == "") {
		missing, given := "nats.tls.key", "nats.tls.cert"
		if n.TLS.Cert == "" {
			missing, given = given, missing
		}
		k.fail(given, given+" is set without "+missing, "a client certificate needs both", missing)
	}
	logins := []struct{ key, value string }{
		{"nats.creds", n.Creds}, {"nats.nkey", n.NKey},
		{"nats.tls.ca", n.TLS.CA}, {"nats.tls.cert", n.TLS.Cert}, {"nats.tls.key", n.TLS.Key},
	}
	if n.Context != "" {
		if n.URL != "" {
			k.fail("nats.context", "nats.context and nats.url are both set", "a context says the URL; keep one of them", "nats.url")
		}
		for _, l := range logins {
			if l.value != "" {
				k.fail(l.key, "nats.context and "+l.key+" are both set", "a context says the login and TLS; keep one of them", "nats.context")
			}
		}
		return
	}
	// A server_config may demand a login of the bridge as well.
	if n.URL == "" && n.Embedded.ServerConfig == "" {
		for _, l := range logins {
			if l.value != "" {
				k.fail(l.key, l.key+" is set, but the embedded server asks for no login", "set nats.url too, or remove it", "nats.url")
			}
		}
	}
}

// embedded checks that nothing was said about a server that will not run. A key
// with its default value says nothing: config.yaml holds them all.
func (k *check) embedded() {
	if !k.config.NATS.External() {
		return
	}
	external := "nats.url"
	if k.config.NATS.URL == "" {
		external = "nats.context"
	}
	standard := reflect.ValueOf(Default())
	for _, l := range leaves() {
		v := reflect.ValueOf(k.config).FieldByIndex(l.index)
		if strings.HasPrefix(l.key, "nats.embedded.") && v.Interface() != standard.FieldByIndex(l.index).Interface() {
			k.fail(l.key, fmt.Sprintf("%s is set, but %s names another server, so the embedded one does not run", l.key, external),
				"remove one of them", external)
		}
	}
}

// urlProblem is what is wrong with a list of server URLs, or "". It never
// repeats the text, which may hold a password.
func urlProblem(list string) string {
	sockets, plain := 0, 0
	for _, s := range strings.Split(list, ",") {
		s = strings.TrimSpace(s)
		if s == "" {
			return "has an empty entry"
		}
		if !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		u, err := url.Parse(s)
		if err != nil {
			return "is not a URL"
		}
		switch u.Scheme {
		case "nats", "tls":
			plain++
		case "ws", "wss":
			sockets++
		default:
			return "has the scheme " + quote(u.Scheme) + ", not nats, tls, ws or wss"
		}
		if !validHost(u.Hostname()) || u.Hostname() == "" {
			return "has no valid host"
		}
		if p := u.Port(); p != "" {
			if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
				return "has a port that is not 1 to 65535"
			}
		}
	}
	if sockets > 0 && plain > 0 {
		return "mixes WebSocket and other URLs, which NATS clients cannot"
	}
	return ""
}

// addresses checks what this process listens on.
func (k *check) addresses() {
	c := k.config
	listens := []struct {
		key, value string
		unused     bool
	}{
		{"nats.embedded.listen", c.NATS.Embedded.Listen, c.NATS.External()},
		{"nats.embedded.http", c.NATS.Embedded.HTTP, c.NATS.External()},
		{"http.listen", c.HTTP.Listen, false},
	}
	type address struct {
		key, host, port string
	}
	var taken []address
	for _, l := range listens {
		if l.value == "" && l.key != "nats.embedded.listen" {
			continue // off
		}
		host, port, problem := splitAddress(l.value)
		if problem != "" {
			k.fail(l.key, quote(l.value)+" "+problem, "write host:port, such as 127.0.0.1:4222; port 0 picks a free one")
			continue
		}
		if l.unused || port == "0" {
			continue
		}
		for _, t := range taken {
			if t.port == port && sameHost(t.host, host) {
				k.fail(l.key, fmt.Sprintf("%s and %s both listen on port %s", l.key, t.key, port), "give one of them another port", t.key)
				break
			}
		}
		taken = append(taken, address{l.key, host, port})
	}
}

func splitAddress(s string) (host, port, problem string) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", "", "is not an address"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", "", "has a port that is not 0 to 65535"
	}
	if !validHost(host) {
		return "", "", "has a host that is neither an IP address nor a name"
	}
	return host, strconv.FormatUint(n, 10), ""
}

// hostName is a DNS name (RFC 1123), with the underscores that container
// networks use.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

var onlyDigitsAndDots = regexp.MustCompile(`^[0-9.]+$`)

// validHost takes an IP address, a name, or "" for every interface.
func validHost(host string) bool {
	if host == "" {
		return true
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	// 127.0.0.256 is a mistyped address, not a name.
	return len(host) <= 253 && hostName.MatchString(host) && !onlyDigitsAndDots.MatchString(host)
}

func sameHost(a, b string) bool {
	a, b = canonicalHost(a), canonicalHost(b)
	return a == b || a == "" || b == ""
}

// canonicalHost makes hosts comparable; "" stands for every interface.
func canonicalHost(host string) string {
	if strings.EqualFold(host, "localhost") {
		return "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() {
			return ""
		}
		return ip.Unmap().String()
	}
	return strings.ToLower(host)
}
