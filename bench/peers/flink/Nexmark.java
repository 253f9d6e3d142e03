import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.datastream.DataStream;

/** The queries 0, 1 and 2 of NEXMark; the same as {@code bench/jobs/nexmark_streams.py} has. Events are made before the clock starts. */
public final class Nexmark {
    static final TypeInformation<Event> EVENT = TypeInformation.of(Event.class);
    private static final TypeInformation<Tuple2<String, Long>> PAIR = Types.TUPLE(Types.STRING, Types.LONG);
    private static final int SKIP = 123;

    private Nexmark() {}

    static DataStream<Tuple2<String, Long>> query(String name, DataStream<Event> events) {
        switch (name) {
            case "nexmark-q0":
                return events.map(event -> event)
                        .returns(EVENT)
                        .map(event -> Tuple2.of(event.kind(), event.dateTime))
                        .returns(PAIR);
            case "nexmark-q1":
                return bids(events)
                        .map(bid -> bid.withPrice(bid.price * 908 / 1000))
                        .returns(Bid.class)
                        .map(bid -> Tuple2.of(bid.channel, bid.price))
                        .returns(PAIR);
            case "nexmark-q2":
                return bids(events)
                        .filter(bid -> bid.auction % SKIP == 0)
                        .map(bid -> Tuple2.of(Long.toString(bid.auction), bid.price))
                        .returns(PAIR);
            default:
                throw new IllegalArgumentException("no such query: " + name);
        }
    }

    private static DataStream<Bid> bids(DataStream<Event> events) {
        return events.filter(event -> event instanceof Bid).map(event -> (Bid) event).returns(Bid.class);
    }

    /** What happened. */
    public abstract static class Event {
        public long dateTime;
        public String extra;

        abstract String kind();
    }

    /** Somebody who joined. */
    public static final class Person extends Event {
        public long id;
        public String name;
        public String emailAddress;
        public String creditCard;
        public String city;
        public String state;

        @Override
        String kind() {
            return "person";
        }
    }

    /** An item that somebody sells. */
    public static final class Auction extends Event {
        public long id;
        public String itemName;
        public String description;
        public long initialBid;
        public long reserve;
        public long expires;
        public long seller;
        public long category;

        @Override
        String kind() {
            return "auction";
        }
    }

    /** What somebody offers. */
    public static final class Bid extends Event {
        public long auction;
        public long bidder;
        public long price;
        public String channel;
        public String url;

        @Override
        String kind() {
            return "bid";
        }

        Bid withPrice(long other) {
            Bid bid = new Bid();
            bid.auction = auction;
            bid.bidder = bidder;
            bid.price = other;
            bid.channel = channel;
            bid.url = url;
            bid.dateTime = dateTime;
            bid.extra = extra;
            return bid;
        }
    }

    /** Event number modulo those of a file, whose lines have the kind and the fields between tabs. */
    public static class Events implements NumberedSource.Maker<Event> {
        private final String file;
        private transient List<Event> events;

        public Events(String file) {
            this.file = file;
        }

        @Override
        public void open() throws IOException {
            try (var lines = Files.lines(Path.of(file))) {
                events = lines.map(Events::parse).collect(Collectors.toList());
            }
        }

        @Override
        public Event make(long number) {
            return events.get((int) (number % events.size()));
        }

        private static Event parse(String line) {
            String[] f = line.split("\t", -1);
            switch (f[0]) {
                case "person":
                    Person person = new Person();
                    person.id = Long.parseLong(f[1]);
                    person.name = f[2];
                    person.emailAddress = f[3];
                    person.creditCard = f[4];
                    person.city = f[5];
                    person.state = f[6];
                    person.dateTime = Long.parseLong(f[7]);
                    person.extra = f[8];
                    return person;
                case "auction":
                    Auction auction = new Auction();
                    auction.id = Long.parseLong(f[1]);
                    auction.itemName = f[2];
                    auction.description = f[3];
                    auction.initialBid = Long.parseLong(f[4]);
                    auction.reserve = Long.parseLong(f[5]);
                    auction.dateTime = Long.parseLong(f[6]);
                    auction.expires = Long.parseLong(f[7]);
                    auction.seller = Long.parseLong(f[8]);
                    auction.category = Long.parseLong(f[9]);
                    auction.extra = f[10];
                    return auction;
                case "bid":
                    Bid bid = new Bid();
                    bid.auction = Long.parseLong(f[1]);
                    bid.bidder = Long.parseLong(f[2]);
                    bid.price = Long.parseLong(f[3]);
                    bid.channel = f[4];
                    bid.url = f[5];
                    bid.dateTime = Long.parseLong(f[6]);
                    bid.extra = f[7];
                    return bid;
                default:
                    throw new IllegalArgumentException("not an event: " + line);
            }
        }
    }
}
