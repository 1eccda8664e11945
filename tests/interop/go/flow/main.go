// Command flow runs a go-nsq consumer against scripted brokers. The body of a message decides its result: "fail" is an
// error of the handler, "continue" a requeue without back-off, "hold" prints "held" and waits for the line "release" on
// standard input; any other message succeeds. With "probe " before it, the result waits until go-nsq has noted the end of
// a back-off's wait. The line "stop" stops the consumer; the program ends when it has stopped, or with its input.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/nsqio/go-nsq"
)

func main() {
	addresses := flag.String("addresses", "", "host:port of the brokers, with commas")
	maxInFlight := flag.Int("max-in-flight", 1, "")
	concurrency := flag.Int("concurrency", 1, "number of handlers")
	backoffMs := flag.Int("backoff-multiplier-ms", 1000, "")
	maxBackoffMs := flag.Int("max-backoff-ms", 120_000, "")
	idleMs := flag.Int("low-rdy-idle-ms", 10_000, "")
	lowRdyMs := flag.Int("low-rdy-ms", 30_000, "")
	redistributeMs := flag.Int("redistribute-ms", 5000, "")
	flag.Parse()

	config := nsq.NewConfig()
	config.MaxInFlight = *maxInFlight
	config.BackoffMultiplier = milliseconds(*backoffMs)
	config.MaxBackoffDuration = milliseconds(*maxBackoffMs)
	config.LowRdyIdleTimeout = milliseconds(*idleMs)
	config.LowRdyTimeout = milliseconds(*lowRdyMs)
	config.RDYRedistributeInterval = milliseconds(*redistributeMs)
	config.LookupdPollInterval = 50 * time.Millisecond
	config.DefaultRequeueDelay = 0
	config.MaxAttempts = 0

	consumer, err := nsq.NewConsumer("topic", "channel", config)
	if err != nil {
		log.Fatal(err)
	}
	release := make(chan struct{})
	consumer.AddConcurrentHandlers(nsq.HandlerFunc(func(m *nsq.Message) error {
		result, isProbe := strings.CutPrefix(string(m.Body), "probe ")
		if isProbe {
			awaitEndOfWait(consumer)
		}
		switch result {
		case "fail":
			return errors.New("as the message says")
		case "continue":
			m.RequeueWithoutBackoff(0)
		case "hold":
			fmt.Println("held")
			<-release
		}
		return nil
	}), *concurrency)
	for _, address := range strings.Split(*addresses, ",") {
		go func(address string) {
			if err := consumer.ConnectToNSQD(address); err != nil {
				log.Print(err)
			}
		}(address)
	}

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case "release":
			close(release)
		case "stop":
			consumer.Stop()
			go func() {
				<-consumer.StopChan
				os.Exit(0)
			}()
		}
	}
}

// awaitEndOfWait returns when go-nsq would count a result: it ignores those that come before it has noted the end of the
// wait, which it does just after it has sent RDY 1. Nothing public tells that.
func awaitEndOfWait(consumer *nsq.Consumer) {
	field := reflect.ValueOf(consumer).Elem().FieldByName("backoffDuration")
	duration := (*int64)(unsafe.Pointer(field.UnsafeAddr()))
	for deadline := time.Now().Add(20 * time.Second); atomic.LoadInt64(duration) > 0; {
		if time.Now().After(deadline) {
			log.Fatal("the wait of the back-off does not end")
		}
		time.Sleep(time.Millisecond)
	}
}

func milliseconds(count int) time.Duration { return time.Duration(count) * time.Millisecond }
