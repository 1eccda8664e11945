// Command interop runs go-nsq as a producer or a consumer under the orders of a test: commands come in on standard
// input, events go out on standard output, one JSON object a line. ../clients/dialogue.py defines both.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nsqio/go-nsq"
)

type command struct {
	Op      string   `json:"op"`
	Topic   string   `json:"topic"`
	Bodies  [][]byte `json:"bodies"`
	DelayMs int64    `json:"delay_ms"`
	ID      string   `json:"id"`
}

type event struct {
	Event    string `json:"event"`
	ID       string `json:"id,omitempty"`
	Attempts uint16 `json:"attempts,omitempty"`
	Body     []byte `json:"body,omitempty"`
	Error    string `json:"error,omitempty"`
}

type reporter struct {
	lock    sync.Mutex
	encoder *json.Encoder
}

func (r *reporter) report(e event) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if err := r.encoder.Encode(e); err != nil {
		log.Fatal(err)
	}
}

// Output reads the library's log for the two events its delegates keep to themselves.
func (r *reporter) Output(_ int, line string) error {
	switch {
	case strings.Contains(line, "heartbeat received"):
		r.report(event{Event: "heartbeat"})
	case strings.Contains(line, "received CLOSE_WAIT"):
		r.report(event{Event: "close_wait"})
	}
	return nil
}

type client interface {
	obey(command)
	close()
}

type producer struct {
	*reporter
	nsq *nsq.Producer
}

func newProducer(r *reporter, address string, config *nsq.Config) *producer {
	p, err := nsq.NewProducer(address, config)
	if err != nil {
		log.Fatal(err)
	}
	p.SetLogger(r, nsq.LogLevelDebug)
	if err := p.Ping(); err != nil {
		log.Fatal(err)
	}
	r.report(event{Event: "connected"})
	return &producer{r, p}
}

func (p *producer) obey(c command) {
	var err error
	switch c.Op {
	case "pub":
		err = p.nsq.Publish(c.Topic, c.Bodies[0])
	case "mpub":
		err = p.nsq.MultiPublish(c.Topic, c.Bodies)
	case "dpub":
		err = p.nsq.DeferredPublish(c.Topic, time.Duration(c.DelayMs)*time.Millisecond, c.Bodies[0])
	}
	if err != nil {
		p.report(event{Event: "failed", Error: err.Error()})
		return
	}
	p.report(event{Event: "published"})
}

func (p *producer) close() { p.nsq.Stop() }

type consumer struct {
	*reporter
	nsq  *nsq.Consumer
	lock sync.Mutex
	held map[string]*nsq.Message
}

func newConsumer(r *reporter, address, lookupd, topic, channel string, config *nsq.Config) *consumer {
	n, err := nsq.NewConsumer(topic, channel, config)
	if err != nil {
		log.Fatal(err)
	}
	c := &consumer{reporter: r, nsq: n, held: map[string]*nsq.Message{}}
	n.SetLogger(r, nsq.LogLevelDebug)
	n.AddHandler(nsq.HandlerFunc(c.handle))
	connect, where := n.ConnectToNSQD, address
	if lookupd != "" {
		connect, where = n.ConnectToNSQLookupd, lookupd
	}
	if err := connect(where); err != nil {
		log.Fatal(err)
	}
	return c
}

func (c *consumer) handle(m *nsq.Message) error {
	m.DisableAutoResponse()
	id := string(m.ID[:])
	c.lock.Lock()
	// A test names a message by its id alone. One that is never finished keeps go-nsq from connecting again.
	if other := c.held[id]; other != nil && other.NSQDAddress != m.NSQDAddress {
		log.Fatalf("%s and %s both sent a message %s: give each a -node-id", other.NSQDAddress, m.NSQDAddress, id)
	}
	c.held[id] = m
	c.lock.Unlock()
	c.report(event{Event: "message", ID: id, Attempts: m.Attempts, Body: m.Body})
	return nil
}

func (c *consumer) message(id string) *nsq.Message {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.held[id]
}

func (c *consumer) obey(order command) {
	switch order.Op {
	case "fin":
		c.message(order.ID).Finish()
	case "req":
		c.message(order.ID).RequeueWithoutBackoff(time.Duration(order.DelayMs) * time.Millisecond)
	case "touch":
		c.message(order.ID).Touch()
	case "cls":
		c.nsq.Stop()
	}
}

func (c *consumer) close() {
	c.nsq.Stop()
	<-c.nsq.StopChan
}

func main() {
	role := flag.String("role", "", "producer or consumer")
	address := flag.String("address", "", "host:port of the daemon's TCP protocol")
	lookupd := flag.String("lookupd", "", "host:port of a lookup daemon's HTTP API, for a consumer instead of -address")
	topic := flag.String("topic", "", "")
	channel := flag.String("channel", "", "")
	maxInFlight := flag.Int("max-in-flight", 1, "")
	heartbeatMs := flag.Int("heartbeat-ms", 30_000, "")
	msgTimeoutMs := flag.Int("msg-timeout-ms", 60_000, "")
	upgrades := flag.String("upgrades", "", "of the connection: tls_v1, snappy, deflate; with commas")
	caFile := flag.String("ca-file", "", "the authority that signed the daemon's certificate")
	flag.Parse()

	config := nsq.NewConfig()
	config.MaxInFlight = *maxInFlight
	config.LookupdPollInterval = time.Second
	config.LookupdPollJitter = 0
	config.HeartbeatInterval = time.Duration(*heartbeatMs) * time.Millisecond
	config.MsgTimeout = time.Duration(*msgTimeoutMs) * time.Millisecond
	for _, name := range strings.FieldsFunc(*upgrades, func(r rune) bool { return r == ',' }) {
		if err := config.Set(name, true); err != nil {
			log.Fatal(err)
		}
	}
	if *caFile != "" {
		if err := config.Set("tls_root_ca_file", *caFile); err != nil {
			log.Fatal(err)
		}
	}
	out := &reporter{encoder: json.NewEncoder(os.Stdout)}
	var c client
	if *role == "producer" {
		c = newProducer(out, *address, config)
	} else {
		c = newConsumer(out, *address, *lookupd, *topic, *channel, config)
	}

	lines := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var next command
		if err := lines.Decode(&next); err != nil || next.Op == "close" {
			break
		}
		c.obey(next)
	}
	c.close()
}
