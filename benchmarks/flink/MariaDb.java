import java.util.EnumSet;
import java.util.Optional;
import java.util.Set;
import org.apache.flink.connector.jdbc.core.database.JdbcFactory;
import org.apache.flink.connector.jdbc.core.database.catalog.JdbcCatalog;
import org.apache.flink.connector.jdbc.core.database.dialect.AbstractDialect;
import org.apache.flink.connector.jdbc.core.database.dialect.AbstractDialectConverter;
import org.apache.flink.connector.jdbc.core.database.dialect.JdbcDialect;
import org.apache.flink.connector.jdbc.core.database.dialect.JdbcDialectConverter;
import org.apache.flink.table.types.logical.LogicalTypeRoot;
import org.apache.flink.table.types.logical.RowType;

/** Flink's JDBC connector reads MariaDB: the connector's core brings a dialect of Derby alone. */
public class MariaDb implements JdbcFactory {
    public boolean acceptsURL(String url) {
        return url.startsWith("jdbc:mariadb:");
    }

    public JdbcDialect createDialect() {
        return new Dialect();
    }

    public JdbcCatalog createCatalog(
            ClassLoader loader, String name, String database, String user, String password, String url) {
        throw new UnsupportedOperationException("no catalog of MariaDB");
    }

    static class Dialect extends AbstractDialect {
        public String dialectName() {
            return "MariaDB";
        }

        public JdbcDialectConverter getRowConverter(RowType row) {
            return new Converter(row);
        }

        public String getLimitClause(long limit) {
            return "LIMIT " + limit;
        }

        public Optional<String> defaultDriverName() {
            return Optional.of("org.mariadb.jdbc.Driver");
        }

        public String quoteIdentifier(String name) {
            return "`" + name + "`";
        }

        public Optional<String> getUpsertStatement(String table, String[] fields, String[] keys) {
            return Optional.empty(); // it is read alone
        }

        public Set<LogicalTypeRoot> supportedTypes() {
            return EnumSet.of(LogicalTypeRoot.INTEGER, LogicalTypeRoot.BIGINT, LogicalTypeRoot.VARCHAR);
        }
    }

    static class Converter extends AbstractDialectConverter {
        Converter(RowType row) {
            super(row);
        }

        public String converterName() {
            return "MariaDB";
        }
    }
}
